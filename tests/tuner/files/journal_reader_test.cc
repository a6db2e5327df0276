// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
#include "tuner/files/journal_reader.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fmt/format.h>

#include <cmath>
#include <limits>
#include <map>
#include <utility>

#include "engine/core/version.h"
#include "policies/space/baseline.h"
#include "tests/tuner/journal_job.h"
#include "tuner/files/journal_writer.h"
#include "tuner/files/trace_file.h"

namespace gradtune::tuner {
namespace {

using testing::HasSubstr;

Job job() {
  return journal_job({{{.name = "w", .shape = {300, 10}, .numel = 3000, .ready_us = 120.5},
                       {.name = "b", .shape = {10}, .numel = 10, .dtype = core::DType::bf16, .ready_us = 0.1}}});
}

constexpr core::StepReport kReport{.step = 0,
                                   .slot = 1,
                                   .step_ms = 10.5,
                                   .compute_ms_max = 6,
                                   .compute_ms_min = 5,
                                   .slowest_rank = 3,
                                   .comm_ms = 4.25,
                                   .work_ms = 1.5,
                                   .failed = true};

std::string journal() {
  return journal_header(job(), "loopback", "nccl (why)") + "\n" + journal_line(job().table) + "\n" +
         journal_line(kReport, Stage::observe) + "\n" +
         journal_line(Decision{0, Stage::observe, Decision::What::baseline, "all_reduce", 10}) + "\n";
}

std::string error_of(std::string text, std::string_view what, std::string_view with) {
  const size_t at = text.find(what);
  EXPECT_NE(at, std::string::npos) << what;
  const auto file = parse_journal(text.replace(at, what.size(), with));
  return file.ok() ? "" : file.error().message;
}

TEST(JournalFile, GivesBackWhatWasWritten) {
  const auto read = parse_journal(journal());
  ASSERT_TRUE(read.ok()) << read.error().message;
  const JournalFile& file = read.value();
  EXPECT_EQ(journal_header(file.job, file.network, file.transport), journal_header(job(), "loopback", "nccl (why)"));
  EXPECT_EQ(file.job.table, job().table);
  EXPECT_FALSE(file.job.imported);
  ASSERT_EQ(file.reports.size(), 1u);
  EXPECT_EQ(file.reports[0], kReport);
  EXPECT_EQ(file.stages, std::vector{Stage::observe});
  EXPECT_THAT(file.decided, testing::ElementsAre(HasSubstr("baseline")));
  ASSERT_EQ(file.decisions.size(), 1U);
  EXPECT_EQ(file.decisions[0], (Decision{0, Stage::observe, Decision::What::baseline, "all_reduce", 10}));
  std::map<int32_t, std::string> labels;
  for (const auto& [slot, candidate] : file.strategies) labels[slot] = candidate.label;
  EXPECT_EQ(labels, (std::map<int32_t, std::string>{{0, "all_reduce baseline"}, {1, "bf16 all_reduce baseline"}}));
}

TEST(JournalFile, AnIntervalWithoutAnEndIsReadBack) {
  const double infinity = std::numeric_limits<double>::infinity();
  const std::string text =
      journal() + journal_line(Decision{1, Stage::confirm, Decision::What::gain_at_least, "a", -infinity}) + "\n";
  const auto file = parse_journal(text);
  ASSERT_TRUE(file.ok()) << file.error().message;
  ASSERT_EQ(file.value().decisions.size(), 2U);
  EXPECT_TRUE(std::isnan(file.value().decisions[1].value));
  EXPECT_THAT(error_of(journal(), R"("stage":"observe","slot")", R"("stage":"watching","slot")"),
              HasSubstr("line 3: stage: \"watching\" is not known"));
}

TEST(JournalFile, GivesBackWhatCollectivesTookOverIdleLinks) {
  Job measured = job();
  measured.machine.idle_links = {.flat = {1.0 / 3, 0.1}, .inter = {100, 80.25}, .intra = {12, 0, 1.0 / 3000}};
  const std::string text = journal_header(measured, "") + "\n" + journal_line(job().table) + "\n";
  const auto read = parse_journal(text);
  ASSERT_TRUE(read.ok()) << read.error().message;
  EXPECT_EQ(read.value().job.machine.idle_links, measured.machine.idle_links);
  const auto with = [&](std::string what, std::string other) {
    std::string changed = text;
    const auto file = parse_journal(changed.replace(changed.find(what), what.size(), other));
    return file ? "" : file.error().message;
  };
  EXPECT_THAT(with("\"wait_us\":80.25", "\"wait_us\":100.25"), HasSubstr("idle_links.inter.wait_us"));
  EXPECT_THAT(with("\"byte_us\":0.0", "\"bytes_us\":0.0"), HasSubstr("idle_links.flat"));
  EXPECT_THAT(with("\"inter\"", "\"outer\""), HasSubstr("idle_links"));
}

TEST(JournalFile, GivesBackWhenLossyStrategiesMayRun) {
  for (const core::OptimizerFamily optimizers : {core::OptimizerFamily::sgd, core::OptimizerFamily::adaptive}) {
    for (const std::optional<int> lossy_after : {std::optional<int>(), std::optional(0), std::optional(9)}) {
      Job known = job();
      known.tuning.lossy_after = lossy_after;
      known.tuning.optimizers = optimizers;
      const auto read = parse_journal(journal_header(known, "") + "\n" + journal_line(job().table) + "\n");
      ASSERT_TRUE(read.ok()) << read.error().message;
      EXPECT_EQ(read.value().job.tuning.lossy_after, lossy_after);
      EXPECT_EQ(read.value().job.tuning.optimizers, optimizers);
    }
  }
}

TEST(JournalFile, GivesBackTheCores) {
  Job known = job();
  known.machine.cores = {.of_rank = 1.5, .computing = 1, .host = known.host_threads, .network = 0.2};
  const std::string text = journal_header(known, "") + "\n" + journal_line(job().table) + "\n";
  const auto read = parse_journal(text);
  ASSERT_TRUE(read.ok()) << read.error().message;
  EXPECT_EQ(read.value().job.machine, known.machine);
  std::string changed = text;
  const auto refused = parse_journal(changed.replace(changed.find("1.5"), 3, "-1"));
  ASSERT_FALSE(refused.ok());
  EXPECT_THAT(refused.error().message, HasSubstr("cores.of_rank"));
}

TEST(JournalFile, GivesBackWhatOfAJobIsOnADevice) {
  Job known = job();
  known.machine.cores = {.of_rank = 1.5, .computing = 0, .host = known.host_threads};
  known.machine.on_device = {.gradients = true, .collectives = false, .kernels = true};
  const std::string text = journal_header(known, "") + "\n" + journal_line(job().table) + "\n";
  const auto read = parse_journal(text);
  ASSERT_TRUE(read.ok()) << read.error().message;
  EXPECT_EQ(read.value().job.machine, known.machine);
  EXPECT_THAT(error_of(text, "\"kernels\":true", "\"kernels\":1"), HasSubstr("device.kernels"));
  EXPECT_THAT(error_of(text, "\"kernels\":true", "\"speed\":true"), HasSubstr("device"));
}

TEST(JournalFile, GivesBackWhatIsKnownOfForwardUpdatesAndContent) {
  Job known = job();
  known.table.forward_us = 1234.5;
  known.table.update_element_us = 1.0 / 3000;
  known.table.tensors[0].read_us = 0;
  known.table.tensors[1].content = {.row = 10, .of_one = 0.01, .of_all = 0.03, .high_one = 0.02, .high_all = 0.05};
  known.table.tensors[0].shape = {known.table.tensors[0].numel, 1, 1};
  known.table.tensors[0].memory_order = {0, 2, 1};
  known.table.uses = {{"int4packed:64", 0.625}, {"packed", 0.75}};
  known.machine.collectives_at_once = 4;
  const std::string text = journal_header(known, "") + "\n" + journal_line(known.table) + "\n";
  const auto read = parse_journal(text);
  ASSERT_TRUE(read.ok()) << read.error().message;
  EXPECT_EQ(read.value().job.table, known.table);
  EXPECT_EQ(read.value().job.machine.collectives_at_once, 4);
  EXPECT_THAT(error_of(text, "\"of_all\":0.03", "\"of_all\":1.03"),
              HasSubstr("line 2: tensors[1].content.of_all: a number from 0 to 1 is needed"));
  const std::string order = "\"memory_order\":[0,2,1]", named = "line 2: tensors[0].memory_order: names ";
  EXPECT_THAT(error_of(text, order, "\"memory_order\":[0,2,2]"), HasSubstr(named + "dimension 2 twice"));
  EXPECT_THAT(error_of(text, order, "\"memory_order\":[0,2]"), HasSubstr(named + "2 of 3 dimensions"));
  EXPECT_THAT(error_of(text, order, "\"memory_order\":[0,2,3]"), HasSubstr("line 2: tensors[0].memory_order"));
  EXPECT_THAT(error_of(text, "\"forward_us\":1234.5", "\"forward_us\":-1"), HasSubstr("line 2: forward_us"));
  EXPECT_THAT(error_of(text, "\"share\":0.75", "\"share\":1.75"), HasSubstr("line 2: uses[1].share"));
}

TEST(JournalFile, GivesBackTheMemoryBudget) {
  Job little = job();
  little.memory_bytes = 1'000'000;
  const std::string text = journal_header(little, "") + "\n" + journal_line(job().table) + "\n";
  EXPECT_EQ(parse_journal(text).value().job.memory_bytes, little.memory_bytes);
  EXPECT_THAT(text, ::testing::Not(HasSubstr("forward_overlap")));
  little.forward_overlap = true;
  EXPECT_TRUE(parse_journal(journal_header(little, "") + text.substr(text.find('\n'))).value().job.forward_overlap);
  little.memory_bytes = INT64_MAX;
  EXPECT_THAT(journal_header(little, ""), ::testing::Not(HasSubstr("memory_budget"))) << "where there is none";
}

TEST(JournalFile, GivesBackWhyTheseCompressors) {
  Job named = job();
  named.codecs_from = "named";
  const std::string text = journal_header(named, "") + "\n" + journal_line(job().table) + "\n";
  EXPECT_EQ(parse_journal(text).value().job.codecs_from, "named");
}

TEST(JournalFile, WhatOlderProgramsDidNotWriteIsAsTheyRan) {
  std::string text = journal();
  for (const std::string part :
       {R"("slowest_rank":3,)", R"("comm_ms":4.25,)", R"("work_ms":1.5,)", R"(,"retune":true)"}) {
    ASSERT_NE(text.find(part), std::string::npos) << part;
    text.erase(text.find(part), part.size());
  }
  const auto file = parse_journal(text);
  ASSERT_TRUE(file.ok()) << file.error().message;
  EXPECT_FALSE(file.value().job.tuning.retune);
  EXPECT_EQ(file.value().reports[0].slowest_rank, -1);
  EXPECT_EQ(file.value().reports[0].comm_ms, 0);
  EXPECT_EQ(file.value().reports[0].work_ms, 0);
}

TEST(JournalFile, AnExcessIsThereOnlyWhereThereWasOne) {
  EXPECT_EQ(journal().find("excess"), std::string::npos);
  core::StepReport over = kReport;
  over.excess = {.kind = core::Excess::Kind::residual, .bucket = 4, .value = 31.25, .allowed = 30};
  const std::string text = journal() + journal_line(over, Stage::watch) + "\n";
  const auto file = parse_journal(text);
  ASSERT_TRUE(file.ok()) << file.error().message;
  EXPECT_EQ(file.value().reports, (std::vector<core::StepReport>{kReport, over}));
  EXPECT_THAT(error_of(text, R"("what":"residual")", R"("what":"none")"),
              HasSubstr("line 5: what: error, residual or broken is needed, found \"none\""));
  EXPECT_THAT(error_of(text, R"("bucket":4)", R"("bucket":-4)"), HasSubstr("line 5: bucket: an integer from 0"));
}

TEST(JournalFile, APlanBeforeTheFirstStepIsTheImportedStrategy) {
  const policies::Candidate imported{core::uniform({{{0, 0, 3000}}, {{1, 0, 10}}}, core::plain_all_reduce(), 2),
                                     "mine"};
  std::string text = journal_header(job(), "") + "\n" + journal_line(job().table) + "\n";
  text += journal_plan_line(-1, kImportedSlot, job(), imported) + "\n";
  const auto file = parse_journal(text);
  ASSERT_TRUE(file.ok()) << file.error().message;
  ASSERT_TRUE(file.value().job.imported);
  EXPECT_EQ(file.value().job.imported->label, "mine");
  EXPECT_EQ(file.value().job.imported->strategy, imported.strategy);
}

TEST(JournalFile, TimingsCarryTheStrategyThatRan) {
  const policies::Candidate candidate{core::uniform({{{0, 0, 3000}}, {{1, 0, 10}}}, core::plain_all_reduce(), 2), "x"};
  const std::string text = journal() + journal_timing_line(1, 0, {{0, 0, 0, 1500.25}}) + "\n" +
                           journal_plan_line(2, 7, job(), candidate) + "\n" +
                           journal_timing_line(3, 7, {{0, -1, 0, 1.5}, {1, 0, 2, 40, 800}}) + "\n";
  const auto read = parse_journal(text);
  ASSERT_TRUE(read.ok()) << read.error().message;
  EXPECT_EQ(read.value().timings[1].report, 1u);
  EXPECT_THAT(read.value().timed_steps, testing::ElementsAre(1, 3));
  const std::vector<policies::TimedRun> runs = read.value().runs();
  ASSERT_EQ(runs.size(), 2u);
  EXPECT_EQ(runs[0].strategy, policies::baselines(job().table, job().fidelity)[0].strategy);
  EXPECT_NEAR(runs[0].steps[0].end_us, 1500.2, 0.11);
  EXPECT_EQ(runs[1].strategy, candidate.strategy);
  ASSERT_EQ(runs[1].steps.size(), 2u);
  EXPECT_EQ(runs[1].steps[0].step, -1);
  EXPECT_EQ(runs[1].steps[1].bucket, 1);
  EXPECT_EQ(runs[1].steps[1].end_us, 40);
  EXPECT_EQ(runs[1].steps[1].bytes, 800);
  EXPECT_EQ(runs[1].steps[0].bytes, -1);

  const policies::Candidate other{core::uniform({{{0, 0, 3000}, {1, 0, 10}}}, core::plain_all_reduce(), 1), "y"};
  EXPECT_TRUE(parse_journal(text + journal_plan_line(4, 7, job(), candidate) + "\n").ok()) << "prepared once more";
  EXPECT_THAT(parse_journal(text + journal_plan_line(4, 7, job(), other) + "\n").error().message,
              HasSubstr("slot: 7 holds another strategy already"));
  EXPECT_THAT(error_of(text, "\"slot\":7,\"ops\"", "\"slot\":8,\"ops\""),
              HasSubstr("line 7: slot: no strategy was put"));
  EXPECT_THAT(error_of(text, "[1,0,2.0,40.0,800]", "[2,0,2.0,40.0,800]"),
              HasSubstr("line 7: ops: an integer from 0 to 1"));
  EXPECT_THAT(error_of(text, "[1,0,2.0,40.0,800]", "[1,1,2.0,40.0,800]"),
              HasSubstr("line 7: ops: an integer from -4 to 0"));
  EXPECT_THAT(error_of(text, "[1,0,2.0,40.0,800]", "[1,0,2.0,1.0,800]"), HasSubstr("line 7: ops: a number from 2"));
  EXPECT_THAT(error_of(text, "[1,0,2.0,40.0,800]", "[1,0,2.0,40.0]"),
              HasSubstr("bucket, step, begin, end and bytes are needed"));
}

TEST(JournalFile, SaysWhoWroteItAndIsReadWhereItDoesNot) {
  const std::string header = journal_header(job(), "");
  const std::string version = fmt::format(R"("gradtune":"{}",)", core::version());
  EXPECT_EQ(parse_journal(header + "\n").value().version, core::version());
  std::string older = header;
  older.erase(older.find(version), version.size());
  EXPECT_EQ(parse_journal(older + "\n").value().version, "");
  EXPECT_THAT(error_of(header + "\n", "journal/3", "journal/9"),
              HasSubstr(fmt::format("found \"gradtune.journal/9\", which gradtune {0} wrote; this is gradtune {0}",
                                    core::version())));
}

TEST(JournalFile, HoldsTheLengthsOfRounds) {
  const std::string text = journal_header(job(), "") + "\n" + journal_line(job().table) + "\n";
  const RoundChoice first{.step = 1, .round = {4}, .allowed = {.least = 2, .most = 8}};
  const RoundChoice second{.step = 20,
                           .round = {.updates = 8, .delay = 3, .fragments = 2},
                           .allowed = {.least = 2, .most = 8, .delay = {}, .fragments = 2},
                           .times = {{30.5, 40, 2.25}}};
  const auto file = parse_journal(text + journal_line(first) + "\n" + journal_line(second) + "\n");
  ASSERT_TRUE(file.ok()) << file.error().message;
  ASSERT_EQ(file.value().rounds.size(), 2);
  EXPECT_EQ(file.value().rounds[0].round, RoundShape{4});
  EXPECT_EQ(file.value().rounds[0].allowed.delay, 0);
  EXPECT_FALSE(file.value().rounds[0].times);
  EXPECT_EQ(file.value().rounds[1].step, 20);
  EXPECT_EQ(file.value().rounds[1].round, (RoundShape{8, 3, 2}));
  EXPECT_EQ(file.value().rounds[1].allowed.fragments, 2);
  EXPECT_FALSE(file.value().rounds[1].allowed.delay);
  EXPECT_EQ(file.value().rounds[1].allowed.least, 2);
  EXPECT_EQ(file.value().rounds[1].times->exchange_ms, 30.5);
  EXPECT_EQ(file.value().rounds[1].times->update_ms, 40);
  EXPECT_EQ(file.value().rounds[1].times->work_ms, 2.25);
  const auto message = [&](const RoundShape& round) {
    RoundChoice wrong = first;
    wrong.round = round;
    const auto refused = parse_journal(text + journal_line(wrong) + "\n");
    return refused.ok() ? "" : refused.error().message;
  };
  EXPECT_THAT(message({9}), HasSubstr("updates"));
  EXPECT_THAT(message({.updates = 4, .delay = 4}), HasSubstr("delay"));
  EXPECT_THAT(message({.updates = 4, .fragments = 65}), HasSubstr("fragments"));
}

TEST(JournalFile, WhyAStrategyCouldNotBePreparedDecidesTheSameAgain) {
  Job small = job();
  small.tuning.lossy_after = 0;
  const auto tuner = make_tuner(small).value();
  std::string text = journal_header(small, "") + "\n" + journal_line(small.table) + "\n";
  core::StepReport report{.slot = 0, .step_ms = 10, .compute_ms_max = 5, .compute_ms_min = 5};
  std::map<int64_t, int32_t> switches;  // by step
  std::vector<std::string> decided;
  int failures = 0;
  for (bool is_asked = false; report.step < 300; ++report.step) {
    if (switches.contains(report.step)) report.slot = switches.at(report.step);
    report.failed = std::exchange(is_asked, false);
    report.prepared = !report.failed;
    if (report.failed) {
      text += journal_failure_line(report.step, "too long") + "\n";
      tuner->learn_failure("too long");
      ++failures;
    }
    text += journal_line(report, tuner->stage()) + "\n";
    const Action answer = tuner->on_step(report);
    for (const Decision& decision : tuner->take_decisions()) decided.push_back(journal_line(decision));
    is_asked = answer.command.kind == Command::Kind::prepare;
    if (is_asked) {
      decided.push_back(journal_plan_line(report.step + 1, answer.command.slot, small, *answer.candidate));
    }
    if (answer.command.kind == Command::Kind::run) switches[report.step + kLead] = answer.command.slot;
    for (; !decided.empty(); decided.erase(decided.begin())) text += decided.front() + "\n";
  }
  ASSERT_GT(failures, 0);
  const auto file = parse_journal(text);
  ASSERT_TRUE(file.ok()) << file.error().message;
  EXPECT_EQ(file.value().failures.size(), static_cast<size_t>(failures));
  EXPECT_THAT(file.value().decided, testing::Contains(HasSubstr(": too long\"")));
  EXPECT_EQ(decide_again(file.value()).value(), file.value().decided);
}

TEST(JournalFile, ALastLineThatIsCutOffIsLeftOut) {
  const std::string text = journal();
  const size_t last = text.rfind('\n', text.size() - 2) + 1;
  for (size_t size = last; size < text.size(); ++size) {
    const auto file = parse_journal(text.substr(0, size));
    ASSERT_TRUE(file.ok()) << file.error().message;
    EXPECT_EQ(file.value().reports.size(), 1u);
    EXPECT_TRUE(file.value().decided.empty());
  }
}

TEST(JournalFile, NamesTheLineAndWhatDoesNotFit) {
  const std::string text = journal();
  EXPECT_THAT(error_of(text, "journal/3", "journal/2"),
              HasSubstr("line 1: schema: \"gradtune.journal/3\" is needed, found \"gradtune.journal/2\""));
  EXPECT_THAT(error_of(text, "\"world_size\":4", "\"world_size\":0"),
              HasSubstr("line 1: world_size: an integer from 1 to 1000000 is needed, found 0"));
  EXPECT_THAT(error_of(text, "topk:0.02", "zip"), HasSubstr("line 1: compressors:"));
  EXPECT_THAT(error_of(text, "[300,10]", "[300,11]"), HasSubstr("line 2: tensors: they are model"));
  EXPECT_THAT(error_of(text, "[300,10]", "[1099511627776,1099511627776]"), HasSubstr("too many elements"));
  EXPECT_THAT(error_of(text, "bfloat16", "int4"), HasSubstr("line 2: tensors[1].dtype: \"int4\" is unknown"));
  EXPECT_THAT(error_of(text, "\"finite\":true", "\"finite\":1"), HasSubstr("line 3: finite: true or false is needed"));
  EXPECT_THAT(error_of(text, "\"step_ms\":10.5", "\"step_ms\":-1"), HasSubstr("line 3: step_ms: a number from 0"));
  EXPECT_THAT(error_of(text, "\"kind\":\"decision\"", "\"kind\":\"guess\""),
              HasSubstr("line 4: kind: table, step, plan, decision, timing, failure, rounds or loss is needed, found"));
  EXPECT_THAT(error_of(text, R"("what":"baseline")", R"("what":"guess")"),
              HasSubstr("line 4: what: \"guess\" is not known"));
  EXPECT_THAT(error_of(text, journal_line(job().table), "{"), HasSubstr("line 2"));
  EXPECT_THAT(error_of(text, journal_line(job().table) + "\n", ""),
              HasSubstr("line 2: a table is needed before the first step"));
  EXPECT_FALSE(parse_journal("").ok());
  EXPECT_FALSE(parse_journal("\n").ok());
}

TEST(JournalFile, ATraceIsInTheOrderOfReadiness) {
  const auto trace = trace_of(parse_journal(journal()).value());
  ASSERT_TRUE(trace.ok());
  EXPECT_EQ(trace.value().table.tensors[0].name, "b");
  EXPECT_EQ(trace.value().table.tensors[1].ready_us, 120.5);
  EXPECT_EQ(parse_trace(to_json(trace.value())).value(), trace.value());
  Job early = job();
  for (core::TensorInfo& tensor : early.table.tensors) tensor.ready_us = 0;
  const std::string text = journal_header(early, "") + "\n" + journal_line(early.table) + "\n";
  EXPECT_THAT(trace_of(parse_journal(text).value()).error().message,
              HasSubstr("before the times of its gradients were known"));
}

}  // namespace
}  // namespace gradtune::tuner
