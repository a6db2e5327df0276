// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
#include "tuner/forecast/recorded_job.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "tests/tuner/report/simulated_journal.h"
#include "tuner/files/file_io.h"

namespace gradtune::tuner {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

JournalFile golden(const std::string& name) {
  return parse_journal(read_file(GRADTUNE_JOURNALS "/" + name + ".jsonl", 1 << 20).value()).value();
}

std::vector<std::string> names_of(const std::vector<core::CompressorSpec>& codecs) {
  std::vector<std::string> names;
  for (const core::CompressorSpec& codec : codecs) names.push_back(core::to_string(codec));
  return names;
}

// The baseline's step time as the job saw it first, which the search was told.
TEST(RecordedJob, ExpectsTheBaselineAsTheJobMeasuredIt) {
  for (const auto& [name, measured_ms, error] :
       {std::tuple("half_1gbit", 667.9, 0.03), std::tuple("lossy_200mbit", 970.2, 0.10),
        std::tuple("imported_200mbit", 1057.3, 0.20)}) {
    const RecordedJob job = recorded_job(golden(name)).value();
    EXPECT_NEAR(forecast_baseline(job.knowledge, job.model)->ms, measured_ms, error * measured_ms) << name;
  }
}

TEST(RecordedJob, ComparesItselfWithTheStrategiesThatRan) {
  const RecordedJob job = recorded_job(golden("half_1gbit")).value();
  std::vector<std::string> labels;
  for (const RanStrategy& ran : job.ran) labels.push_back(ran.candidate.label);
  EXPECT_THAT(labels, ElementsAre("all_reduce baseline", "bf16 all_reduce baseline", "bf16 gather, 8 buckets",
                                  "bf16 all_reduce, 8 buckets"));
  ASSERT_TRUE(job.misfit());
  std::vector<double> errors;
  for (const RanStrategy& ran : job.ran) errors.push_back(std::abs(ran.expected_ms / ran.measured_ms - 1));
  std::ranges::sort(errors);
  EXPECT_EQ(job.misfit()->middle, (errors[1] + errors[2]) / 2);
  EXPECT_EQ(job.misfit()->largest, errors[3]);
  EXPECT_EQ(job.misfit()->strategies, 4);
  EXPECT_GT(errors[0], 0) << "no strategy's own step time is part of its prediction";
}

TEST(RecordedJob, PlansWithTheCompressorsThatWereTimed) {
  const JournalFile half = golden("half_1gbit");
  EXPECT_THAT(names_of(recorded_job(half).value().knowledge.codecs), ElementsAre("none", "bf16"));
  EXPECT_THAT(recorded_job(half).value().guessed, IsEmpty());
  EXPECT_THAT(names_of(recorded_job(half, core::Fidelity::exact).value().knowledge.codecs), ElementsAre("none"));
  const RecordedJob lossy = recorded_job(half, core::Fidelity::lossy).value();
  EXPECT_THAT(names_of(lossy.knowledge.codecs),
              ElementsAre("none", "bf16", "int8:256", "int3packed:256", "powersgd:16"));
  EXPECT_THAT(names_of(lossy.guessed), ElementsAre("int8:256", "int3packed:256", "powersgd:16"));
  const RecordedJob timed = recorded_job(golden("lossy_200mbit")).value();
  EXPECT_THAT(names_of(timed.knowledge.codecs), ElementsAre("none", "bf16", "topk:0.02"));
  EXPECT_THAT(timed.guessed, IsEmpty());
}

TEST(RecordedJob, MoreFidelityNeverMakesTheChoiceSlower) {
  for (const char* const name : {"half_1gbit", "lossy_200mbit", "imported_200mbit"}) {
    double before_ms = std::numeric_limits<double>::infinity();
    for (const core::Fidelity fidelity : {core::Fidelity::exact, core::Fidelity::half, core::Fidelity::lossy}) {
      const RecordedJob job = recorded_job(golden(name), fidelity).value();
      const auto choice = forecast_choice(job.knowledge, job.model),
                 baseline = forecast_baseline(job.knowledge, job.model);
      ASSERT_TRUE(choice && baseline);
      EXPECT_LE(choice->ms, baseline->ms);
      EXPECT_LE(choice->ms, before_ms * 1.001) << name << " " << core::to_string(fidelity);
      EXPECT_LE(core::needed_fidelity(choice->strategy, job.knowledge.traits), fidelity);
      EXPECT_TRUE(core::validate(choice->strategy, job.knowledge.table).ok());
      before_ms = choice->ms;
    }
  }
}

TEST(RecordedJob, AStrategyThatIsKnownToBeFasterIsChosen) {
  const RecordedJob job = recorded_job(golden("half_1gbit")).value();
  const Forecast choice = forecast_choice(job.knowledge, job.model).value();
  policies::Knowledge exact = job.knowledge;
  exact.fidelity = core::Fidelity::exact;
  exact.codecs = {{"none"}};
  const Forecast slower = forecast_choice(exact, job.model).value();
  EXPECT_GT(slower.ms, choice.ms);
  EXPECT_EQ(forecast_choice(exact, job.model, std::span(&choice.strategy, 1))->strategy, slower.strategy)
      << "16 bits are not allowed";
  exact.fidelity = core::Fidelity::half;
  exact.codecs = {{"none"}, {"bf16"}};
  EXPECT_LE(forecast_choice(exact, job.model, std::span(&choice.strategy, 1))->ms, choice.ms);
}

TEST(RecordedJob, TheLinkIsTheOneThatWasProbed) {
  JournalFile journal = golden("half_1gbit");
  policies::IdleLink& idle = journal.job.machine.idle_links.flat;
  idle = {.message_us = 250, .wait_us = 200, .byte_us = 0.01};
  EXPECT_EQ(recorded_job(journal).value().link, (Link{.rate_mbit = 800, .delay_us = 100}));
  idle.byte_us = 0;  // not probed: the fitted rates tell, at 1 Gbit/s less what protocols take
  const Link link = recorded_job(journal).value().link;
  EXPECT_GT(link.rate_mbit, 800);
  EXPECT_LT(link.rate_mbit, 1000);
}

TEST(RecordedJob, RefusesJournalsThatTellTooLittle) {
  JournalFile journal = golden("half_1gbit");
  journal.job.ranks.size = 1;
  EXPECT_THAT(recorded_job(journal).error().message, HasSubstr("one rank"));
  journal = golden("half_1gbit");
  journal.timings.clear();
  EXPECT_THAT(recorded_job(journal).error().message, HasSubstr("no timings"));
  journal = golden("half_1gbit");
  for (core::TensorInfo& tensor : journal.job.table.tensors) tensor.ready_us = 0;
  EXPECT_THAT(recorded_job(journal).error().message, HasSubstr("when gradients are ready"));
}

}  // namespace
}  // namespace gradtune::tuner
