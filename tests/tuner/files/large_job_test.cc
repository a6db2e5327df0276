// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// Files of very large jobs can be read again. The job has as many tensors as a mixture of experts with adapters,
// each with a long name, several dimensions, and its own bucket.
#include <gtest/gtest.h>

#include <string>

#include "engine/compress/compressor.h"
#include "tests/tuner/journal_job.h"
#include "tuner/files/journal_reader.h"
#include "tuner/files/journal_writer.h"
#include "tuner/files/saved_state.h"
#include "tuner/files/strategy_file.h"
#include "tuner/files/trace_file.h"

namespace gradtune::tuner {
namespace {

constexpr int kTensors = 50'000;

core::GradientTable large_table() {
  core::GradientTable table;
  for (int t = 0; t < kTensors; ++t) {
    table.tensors.push_back(
        {.name = "model.layers.47.mlp.experts.127.gate_proj.lora_A.default.weight." + std::to_string(t),
         .shape = {2, 3},
         .numel = 6,
         .ready_us = 0.1 * t,
         .read_us = 0.3 * t,
         .content = {.row = 3, .of_one = 0.1, .of_all = 0.2, .high_one = 0.1, .high_all = 0.3}});
  }
  return table;
}

// One bucket per tensor, each with several collectives.
core::Strategy large_strategy() {
  std::vector<std::vector<core::Slice>> buckets;
  for (int t = 0; t < kTensors; ++t) buckets.push_back({{t, 0, 6}});
  return core::uniform(buckets, core::two_step({.name = "topk", .parameter = 0.5}, core::Place::device), 4);
}

class LargeJob : public ::testing::Test {
 protected:
  const Job job_ = journal_job(large_table());
  const core::Strategy strategy_ = large_strategy();
  const StrategyFile file_ = strategy_file(job_.table, job_.ranks.size, job_.fidelity, "large", strategy_);
};

TEST_F(LargeJob, AStrategyIsReadAgain) {
  const std::string text = to_json(file_);
  EXPECT_GT(text.size(), size_t{1} << 20);
  const auto read = parse_strategy(text, compress::known_traits());
  ASSERT_TRUE(read.ok()) << read.error().message;
  EXPECT_EQ(read.value(), file_);
  const auto candidate = read_candidate(text);
  ASSERT_TRUE(candidate.ok()) << candidate.error().message;
  EXPECT_EQ(candidate.value().strategy, strategy_);
}

TEST_F(LargeJob, AJournalAndItsTraceAreReadAgain) {
  std::vector<policies::TimedOp> ops;
  for (int32_t bucket = 0; bucket < kTensors; ++bucket) {
    const auto steps = static_cast<int32_t>(strategy_.buckets[static_cast<size_t>(bucket)].option.steps.size());
    for (int32_t step = 0; step < steps; ++step) ops.push_back({bucket, step, 1e6, 1e6 + 12.5, -1});
  }
  const std::string text = journal_header(job_, "") + "\n" + journal_line(job_.table) + "\n" +
                           journal_line(core::StepReport{}, Stage::observe) + "\n" +
                           journal_plan_line(1, 7, job_, {strategy_, "large"}) + "\n" + journal_timing_line(1, 7, ops) +
                           "\n";
  const auto journal = parse_journal(text);
  ASSERT_TRUE(journal.ok()) << journal.error().message;
  EXPECT_EQ(journal.value().job.table, job_.table);
  EXPECT_EQ(journal.value().strategies.at(7).strategy, strategy_);
  EXPECT_EQ(journal.value().timings.at(0).ops.size(), ops.size());
  const auto trace = parse_trace(to_json(trace_of(journal.value()).value()));
  ASSERT_TRUE(trace.ok()) << trace.error().message;
  EXPECT_EQ(trace.value().table, job_.table);
}

TEST_F(LargeJob, TheSectionsOfACheckpointAreReadAgain) {
  SavedRank rank{.agreement = {.slot = 3, .slots = {{3, core::hash(strategy_)}}}, .strategies = {{3, file_}}};
  rank.errors.buckets.resize(kTensors);
  for (ErrorBudget::Bucket& bucket : rank.errors.buckets) {
    for (int step = 0; step < 8; ++step) bucket.errors.add(0.1 * step);
  }
  for (int32_t t = 0; t < kTensors; ++t) rank.contents[t] = job_.table.tensors[static_cast<size_t>(t)].content;
  const auto read = parse_saved_rank(to_json(rank), compress::known_traits());
  ASSERT_TRUE(read.ok()) << read.error().message;
  EXPECT_EQ(read.value(), rank);

  SavedTuner tuner{.job = job_, .ready_count = std::vector<int64_t>(kTensors, 3)};
  tuner.job.imported = policies::Candidate{strategy_, "large"};
  const auto told = parse_saved_tuner(to_json(tuner), compress::known_traits());
  ASSERT_TRUE(told.ok()) << told.error().message;
  EXPECT_EQ(told.value().job.table, job_.table);
  ASSERT_TRUE(told.value().job.imported);
  EXPECT_EQ(told.value().job.imported->strategy, strategy_);
}

}  // namespace
}  // namespace gradtune::tuner
