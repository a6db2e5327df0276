// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
#include "tuner/forecast/explanation.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>

#include "engine/compress/compressor.h"
#include "engine/core/median.h"
#include "tests/tuner/report/simulated_journal.h"
#include "tuner/files/file_io.h"

namespace gradtune::tuner {
namespace {

using testing::HasSubstr;
using testing::IsEmpty;

const std::vector<std::pair<std::string, int32_t>> kGolden = {
    {"half_1gbit", 4}, {"lossy_200mbit", 2}, {"imported_200mbit", 2}};

JournalFile golden(const std::string& name) {
  return parse_journal(read_file(GRADTUNE_JOURNALS "/" + name + ".jsonl", 1 << 20).value()).value();
}

// Two tensors whose gradients are ready at once, so that a step can be calculated by hand. There are four ranks. A
// message takes 20 us and then travels for 100 us. Compression takes no time unless a test sets one.
constexpr int64_t kFirst = 1 << 20, kSecond = 1 << 18;
constexpr double kReadyUs = 30'000, kByteUs = 0.01, kHandlingUs = 20, kWaitUs = 100;

core::GradientTable two_tensors() {
  core::GradientTable table;
  for (const auto& [name, numel] : {std::pair("large", kFirst), {"small", kSecond}}) {
    table.tensors.push_back({.name = name, .shape = {numel}, .numel = numel, .ready_us = kReadyUs});
  }
  return table;
}

policies::CostTable made_up_cost() {
  policies::CostTable cost{.ranks = {.size = 4}};
  for (const core::Step::Kind kind : {core::Step::Kind::all_reduce, core::Step::Kind::all_gather}) {
    cost.collectives.push_back({kind, core::Level::flat, kHandlingUs + kWaitUs, kByteUs, kWaitUs});
  }
  for (const char* const codec : {"none", "bf16"}) cost.codecs.push_back({{codec}, core::Place::device});
  return cost;
}

policies::Knowledge made_up_job(core::Fidelity fidelity) {
  policies::Knowledge knowledge{.table = two_tensors(),
                                .ranks = {.size = 4},
                                .fidelity = fidelity,
                                .codecs = {{"none"}},
                                .traits = compress::known_traits()};
  if (fidelity != core::Fidelity::exact) knowledge.codecs.push_back({"bf16"});
  return knowledge;
}

policies::Candidate one_bucket(const core::Option& option) {
  core::Strategy strategy;
  strategy.buckets.push_back({.slices = {{0, 0, kFirst}, {1, 0, kSecond}}, .option = option});
  core::set_default_flow(strategy);
  return {strategy, "one bucket"};
}

// A sum over a ring of four: six messages, and 3/2 of the bytes.
double ring_ms(double bytes, double byte_us = kByteUs, double handling_us = kHandlingUs, double wait_us = kWaitUs) {
  return 1e-3 * (kReadyUs + 6 * (handling_us + wait_us) + 1.5 * bytes * byte_us);
}
// A gather: three messages, and three times the bytes.
double gather_ms(double bytes) { return 1e-3 * (kReadyUs + 3 * (kHandlingUs + kWaitUs) + 3 * bytes * kByteUs); }

constexpr double kBytes = 4.0 * (kFirst + kSecond);

const OtherWay* find(const BucketReason& bucket, const core::Option& option) {
  const auto found = std::ranges::find(bucket.others, option, &OtherWay::option);
  return found == bucket.others.end() ? nullptr : &*found;
}

TEST(Explanation, OtherWaysAreExpectedAsTheyWouldRun) {
  const policies::Knowledge job = made_up_job(core::Fidelity::half);
  const auto model = policies::StepTimePredictor::of(job.table, job.traits, made_up_cost());
  const core::Option half = core::encoded_all_reduce({"bf16"}, core::Place::device);
  const auto explanation = explain(one_bucket(half), job, model, /*is_whole=*/false);
  ASSERT_TRUE(explanation);
  EXPECT_NEAR(explanation->expected_ms, ring_ms(kBytes / 2), 1e-3);
  ASSERT_EQ(explanation->buckets.size(), 1U);
  const BucketReason& bucket = explanation->buckets[0];
  EXPECT_EQ(bucket.option, half);
  EXPECT_EQ((std::pair{bucket.first, bucket.last}), (std::pair<std::string, std::string>{"large", "small"}));
  EXPECT_EQ(bucket.bytes, static_cast<int64_t>(kBytes));
  EXPECT_NEAR(bucket.expected_ms, explanation->expected_ms - kReadyUs * 1e-3, 1e-3);
  ASSERT_NE(find(bucket, core::plain_all_reduce()), nullptr);
  EXPECT_NEAR(find(bucket, core::plain_all_reduce())->ms, ring_ms(kBytes), 1e-3);
  const core::Option gather = core::gather_payloads({"bf16"}, core::Place::device);
  ASSERT_NE(find(bucket, gather), nullptr);
  EXPECT_NEAR(find(bucket, gather)->ms, gather_ms(kBytes / 2), 1e-3);
  EXPECT_TRUE(std::ranges::is_sorted(bucket.others, {}, &OtherWay::ms));
}

// A table of rows is sent by programs of its own, and a baseline gathers its rows.
TEST(Explanation, ASparseTableIsComparedWithWaysOfSparseTables) {
  policies::Knowledge job = made_up_job(core::Fidelity::exact);
  job.table.tensors[0].content = {.row = 64, .of_one = 0.01, .of_all = 0.04, .high_one = 0.01, .high_all = 0.04};
  job.codecs.push_back({"rows"});
  policies::CostTable cost = made_up_cost();
  cost.collectives.push_back(
      {core::Step::Kind::all_to_all, core::Level::flat, kHandlingUs + kWaitUs, kByteUs, kWaitUs});
  cost.codecs.push_back({{"rows"}, core::Place::device});
  const auto model = policies::StepTimePredictor::of(job.table, job.traits, cost);
  const core::Option gather = core::gather_payloads({"rows"}, core::Place::device);
  const core::Option two_step = core::two_step({"rows"}, core::Place::device);
  core::Strategy strategy;
  strategy.buckets.push_back({.slices = {{0, 0, kFirst}}, .option = two_step});
  strategy.buckets.push_back({.slices = {{1, 0, kSecond}}, .option = core::plain_all_reduce()});
  core::set_default_flow(strategy);
  const auto explanation = explain({strategy, "rows"}, job, model, false);
  ASSERT_TRUE(explanation);
  const BucketReason &table = explanation->buckets[0], &dense = explanation->buckets[1];
  EXPECT_EQ(table.plain, gather);
  EXPECT_NE(find(table, gather), nullptr);
  for (const OtherWay& other : table.others) {
    const bool is_of_rows = other.option == core::plain_all_reduce() ||
                            (other.option.codecs.size() == 1 && other.option.codecs[0].name == "rows");
    EXPECT_TRUE(is_of_rows) << core::to_string(other.option);
  }
  EXPECT_EQ(dense.plain, core::plain_all_reduce());
  EXPECT_EQ(find(dense, gather), nullptr);
}

TEST(Explanation, OnlyWaysThatTheFidelityAllowsAreConsidered) {
  const policies::Knowledge job = made_up_job(core::Fidelity::exact);
  const auto model = policies::StepTimePredictor::of(job.table, job.traits, made_up_cost());
  const auto explanation = explain(one_bucket(core::plain_all_reduce()), job, model, false);
  ASSERT_TRUE(explanation);
  for (const OtherWay& other : explanation->buckets[0].others) {
    EXPECT_EQ(core::needed_fidelity(other.option, job.traits), core::Fidelity::exact) << core::to_string(other.option);
  }
}

TEST(Explanation, PartsAndRemediesAreTheArithmeticOfAStep) {
  const policies::Knowledge job = made_up_job(core::Fidelity::exact);
  policies::CostTable cost = made_up_cost();
  cost.scale_us = 400;
  const auto model = policies::StepTimePredictor::of(job.table, job.traits, cost);
  const auto explanation = explain(one_bucket(core::plain_all_reduce()), job, model, false);
  ASSERT_TRUE(explanation);
  const double scale_ms = 0.4, step_ms = ring_ms(kBytes) + scale_ms;
  EXPECT_NEAR(explanation->expected_ms, step_ms, 1e-3);
  EXPECT_NEAR(explanation->computation_ms, kReadyUs * 1e-3, 1e-3);
  std::map<Part, double> without;
  for (const Without& each : explanation->without) without[each.part] = each.ms;
  EXPECT_NEAR(without[Part::bytes], ring_ms(0) + scale_ms, 1e-3);
  EXPECT_NEAR(without[Part::messages], ring_ms(kBytes, kByteUs, 0, 0) + scale_ms, 1e-3);
  EXPECT_NEAR(without[Part::compressors], ring_ms(kBytes), 1e-3);
  EXPECT_EQ(explanation->without.front().part, Part::bytes);
  std::map<Remedy, double> helped;
  for (const Helped& each : explanation->helped) helped[each.remedy] = each.ms;
  EXPECT_NEAR(helped[Remedy::twice_the_rate], ring_ms(kBytes, kByteUs / 2) + scale_ms, 1e-3);
  EXPECT_NEAR(helped[Remedy::half_the_delay], ring_ms(kBytes, kByteUs, kHandlingUs, kWaitUs / 2) + scale_ms, 1e-3);
  EXPECT_NEAR(helped[Remedy::faster_compressors], ring_ms(kBytes) + scale_ms / 2, 1e-3);
  EXPECT_FALSE(helped.contains(Remedy::lossy)) << "only a recorded job tells of other compressors";
  EXPECT_EQ(explanation->helped.front().remedy, Remedy::twice_the_rate);
  EXPECT_NEAR(explanation->larger_batch, 1 - (step_ms + kReadyUs * 1e-3) / (2 * step_ms), 1e-6);
}

TEST(Explanation, WithoutARateThereIsNone) {
  const policies::Knowledge job = made_up_job(core::Fidelity::half);
  policies::CostTable cost = made_up_cost();
  cost.codecs.pop_back();
  const auto model = policies::StepTimePredictor::of(job.table, job.traits, cost);
  EXPECT_FALSE(explain(one_bucket(core::encoded_all_reduce({"bf16"}, core::Place::device)), job, model, false));
}

TEST(Explanation, OfAJournalHasTheTimesThatWereMeasured) {
  for (const auto& [name, slot] : kGolden) {
    const JournalFile journal = golden(name);
    const auto explanation = explain(journal, slot);
    ASSERT_TRUE(explanation.ok()) << explanation.error().message;
    const core::Strategy& strategy = journal.strategies.at(slot).strategy;
    EXPECT_EQ(explanation.value().label, journal.strategies.at(slot).label);
    EXPECT_TRUE(explanation.value().is_whole);
    ASSERT_EQ(explanation.value().buckets.size(), strategy.buckets.size());
    for (const BucketReason& bucket : explanation.value().buckets) {
      std::vector<double> ms;
      for (const Timing& timing : journal.timings) {
        if (timing.slot != slot) continue;
        double begin_us = std::numeric_limits<double>::infinity(), end_us = 0;
        for (const policies::TimedOp& op : timing.ops) {
          if (op.bucket != bucket.bucket) continue;
          begin_us = std::min(begin_us, op.begin_us);
          end_us = std::max(end_us, op.end_us);
        }
        ms.push_back((end_us - begin_us) * 1e-3);
      }
      ASSERT_TRUE(bucket.measured_ms);
      EXPECT_DOUBLE_EQ(*bucket.measured_ms, core::median(ms)) << name << " " << bucket.bucket;
      EXPECT_FALSE(bucket.others.empty());
    }
    EXPECT_TRUE(explanation.value().measured_ms);
    EXPECT_LT(explanation.value().computation_ms, explanation.value().expected_ms);
    for (const Without& part : explanation.value().without) {
      EXPECT_LE(part.ms, explanation.value().expected_ms * 1.001);
      EXPECT_GE(part.ms, explanation.value().computation_ms * 0.999);
    }
  }
}

TEST(Explanation, LossyCompressionIsARemedyOfAJobThatHasNone) {
  const auto lossy_of = [](const std::string& name, int32_t slot) {
    std::vector<Helped> found = explain(golden(name), slot).value().helped;
    std::erase_if(found, [](const Helped& helped) { return helped.remedy != Remedy::lossy; });
    return found;
  };
  ASSERT_EQ(lossy_of("half_1gbit", 4).size(), 1U);
  EXPECT_TRUE(lossy_of("half_1gbit", 4)[0].is_guess);
  EXPECT_THAT(lossy_of("lossy_200mbit", 2), IsEmpty());
}

// The truth of a simulated job tells if the strategy's other ways are expected rightly.
TEST(Explanation, OfASimulatedJobAgreesWithItsTruth) {
  const SimulatedJournal simulated = reference_journal(400);
  const JournalFile journal = parse_journal(simulated.text).value();
  const auto truth = reference_truth(4, 60);
  for (const auto& [slot, candidate] : journal.strategies) {
    const auto explanation = explain(journal, slot);
    ASSERT_TRUE(explanation.ok()) << candidate.label;
    const double true_ms = truth.step_ms(candidate.strategy);
    EXPECT_NEAR(explanation.value().expected_ms, true_ms, 0.05 * true_ms) << candidate.label;
    policies::testing::TimelineJob faster = reference_truth(4, 120);
    const auto& helped = explanation.value().helped;
    const auto rate = std::ranges::find(helped, Remedy::twice_the_rate, &Helped::remedy);
    EXPECT_NEAR(rate->ms, faster.step_ms(candidate.strategy), 0.05 * true_ms) << candidate.label;
  }
}

TEST(Explanation, SaysWhatAJournalLacks) {
  JournalFile journal = golden("half_1gbit");
  journal.timings.clear();
  const auto explanation = explain(journal, 4);
  ASSERT_FALSE(explanation.ok());
  EXPECT_THAT(explanation.error().message, HasSubstr("no timings"));
}

}  // namespace
}  // namespace gradtune::tuner
