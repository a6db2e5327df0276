// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
#include "tuner/files/saved_state.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <string>

#include "engine/compress/compressor.h"
#include "engine/core/rng.h"
#include "policies/space/baseline.h"
#include "tests/tuner/journal_job.h"
#include "tuner/files/journal_writer.h"

namespace gradtune::tuner {
namespace {

using testing::HasSubstr;

const auto kKnown = compress::known_traits();

core::GradientTable table() {
  return {{{.name = "w", .shape = {300, 10}, .numel = 3000, .ready_us = 0.1 + 0.2},
           {.name = "b", .shape = {10}, .numel = 10, .dtype = core::DType::bf16, .ready_us = 1e-9}}};
}

StrategyFile strategy(int in_flight) {
  return strategy_file(table(), 4, core::Fidelity::lossy, "number " + std::to_string(in_flight),
                       core::uniform({{{0, 0, 3000}}, {{1, 0, 10}}}, core::plain_all_reduce(), in_flight));
}

SavedRank saved_rank() {
  SavedRank saved{.step = 120,
                  .nonfinite_steps = 2,
                  .random_step = 0xfffffffe,
                  .order_learned = true,
                  .contents = {{0, {.row = 10, .of_one = 0.1, .of_all = 0.3, .high_one = 0.1 + 0.2, .high_all = 1}}},
                  .committed = true,
                  .local = {.step = 119,
                            .step_ms = 0.1 + 0.2,
                            .compute_ms = -1e-17,
                            .comm_ms = 3,
                            .rank = 1,
                            .finite = false,
                            .excluded = true}};
  for (const int32_t slot : {0, 3, 9}) saved.strategies[slot] = strategy(1 + slot);
  const auto hash = [&](int32_t slot) { return core::hash(saved.strategies[slot].strategy); };
  saved.agreement = {.slot = 3,
                     .epoch = 17,
                     .slots = {{0, hash(0)}, {3, hash(3)}},
                     .pending = Agreement::Pending{.slot = 9, .answered = true, .hash = hash(9)},
                     .failed_slot = 8,
                     .begun = true,
                     .last_slot = 7,
                     .last_finite = false};
  saved.errors.is_committed = true;
  saved.errors.buckets.resize(2);
  for (int step = 0; step < 70; ++step) saved.errors.buckets[1].errors.add(0.1 * step);
  saved.errors.committed = {{.bucket = 7}, {.bucket = 0xfedcba9876543210}};
  saved.errors.committed[1].errors.add(0.1 + 0.2);
  for (int step = 0; step < 40; ++step) saved.errors.buckets[1].ratios.add(0.1 + 0.2 * step);
  for (int step = 0; step < 3; ++step) saved.errors.buckets[1].norms.add(step / 3.0);
  for (int level = 0; level < 7; ++level) saved.errors.buckets[1].ratio_levels.add(std::sqrt(level));
  for (int level = 0; level < 2; ++level) saved.errors.buckets[0].norm_levels.add(std::cbrt(level));
  saved.holders = {{{{0, 7, "topk:0.01"}, {7, 3000, "none qsgd:4"}}, {{3, 10, ""}}}};
  return saved;
}

SavedTuner saved_tuner() {
  SavedTuner saved{.job = journal_job(table()), .ready_count = {3, 4}, .committed = strategy(2)};
  saved.job.imported = policies::Candidate{strategy(5).strategy, "mine"};
  return saved;
}

std::string replaced(std::string text, std::string_view what, std::string_view with) {
  const size_t at = text.find(what);
  EXPECT_NE(at, text.npos) << what;
  return text.replace(at, what.size(), with);
}

TEST(SavedState, OfARankIsReadAsItWasWritten) {
  for (SavedRank saved : {saved_rank(), [] {
                            SavedRank other = saved_rank();
                            other.agreement.pending.reset();
                            other.agreement.failed_slot.reset();
                            other.strategies.erase(9);
                            return other;
                          }()}) {
    const auto read = parse_saved_rank(to_json(saved), kKnown);
    ASSERT_TRUE(read.ok()) << read.error().message;
    EXPECT_EQ(read.value(), saved);
  }
}

TEST(SavedState, OfARankWhatDoesNotFitTogetherIsNamed) {
  const std::string text = to_json(saved_rank());
  const auto error = [&](std::string_view what, std::string_view with) {
    const auto read = parse_saved_rank(replaced(text, what, with), kKnown);
    return read.ok() ? "" : read.error().message;
  };
  EXPECT_THAT(error("\"slot\":3,\"epoch\"", "\"slot\":4,\"epoch\""),
              HasSubstr("agreement: the slot in force is empty"));
  EXPECT_THAT(error("\"in_flight\":4", "\"in_flight\":3"),
              HasSubstr("strategies: that of slot 3 is not the one that the ranks agreed on"));
  EXPECT_THAT(error("\"world_size\":4", "\"world_size\":5"), HasSubstr("is for another job than that of the first"));
  EXPECT_THAT(error("[0,", "[1,"), HasSubstr("strategies"));
  EXPECT_THAT(error("\"epoch\":17", "\"epoch\":0"), HasSubstr("epoch: an integer from 1"));
  EXPECT_THAT(error("\"begun\":true", "\"begun\":1"), HasSubstr("begun: true or false is needed"));
  EXPECT_THAT(error("\"step\":119", "\"step\":1.5"), HasSubstr("step: an integer from -1"));
  EXPECT_THAT(error("\"random_step\":4294967294", "\"random_step\":4294967296"), HasSubstr("random_step: an integer"));
  EXPECT_THAT(error("\"committed\":true", "\"commited\":true"), HasSubstr("the key \"commited\" is unknown"));
  EXPECT_THAT(error("\"count\":70", "\"count\":7"), HasSubstr("errors: 32 values of 7 are there"));
  EXPECT_THAT(error("\"count\":70", "\"count\":-7"), HasSubstr("count: an integer from 0"));
  EXPECT_THAT(error("{\"bucket\":\"0000000000000007\",\"errors\":{\"count\":0,\"values\":[]}},", ""),
              HasSubstr("errors: those of the 2 buckets in force are needed"));
  EXPECT_THAT(error("[0,7,3000,", "[0,6,3000,"), HasSubstr("holders: an integer from 7"));
  EXPECT_THAT(error("[1,3,10,", "[16,3,10,"), HasSubstr("holders: an integer from 0"));
  EXPECT_FALSE(parse_saved_rank("", kKnown).ok());
  EXPECT_FALSE(parse_saved_rank("{}", kKnown).ok());
}

TEST(SavedState, OfTheTunerIsReadAsItWasWritten) {
  const SavedTuner saved = saved_tuner();
  const auto read = parse_saved_tuner(to_json(saved), kKnown);
  ASSERT_TRUE(read.ok()) << read.error().message;
  EXPECT_EQ(read.value().job.table, saved.job.table) << "ready times bit for bit";
  EXPECT_EQ(journal_header(read.value().job, ""), journal_header(saved.job, ""));
  ASSERT_TRUE(read.value().job.imported);
  EXPECT_EQ(read.value().job.imported->strategy, saved.job.imported->strategy);
  EXPECT_EQ(read.value().ready_count, saved.ready_count);
  EXPECT_EQ(read.value().committed, saved.committed);
  SavedTuner plain{.job = journal_job(table()), .ready_count = {0, 0}};
  const auto again = parse_saved_tuner(to_json(plain), kKnown);
  ASSERT_TRUE(again.ok()) << again.error().message;
  EXPECT_FALSE(again.value().job.imported || again.value().committed);
}

TEST(SavedState, OfTheTunerWhatDoesNotFitIsNamed) {
  const auto error = [](std::string_view what, std::string_view with) {
    const auto read = parse_saved_tuner(replaced(to_json(saved_tuner()), what, with), kKnown);
    return read.ok() ? "" : read.error().message;
  };
  EXPECT_THAT(error("[3,4]", "[3]"), HasSubstr("ready_count: one for each of 2 tensors is needed, found 1"));
  EXPECT_THAT(error("[3,4]", "[3,-4]"), HasSubstr("ready_count: an integer from 0"));
  EXPECT_THAT(error("journal/3", "journal/2"), HasSubstr("journal: line 1: schema"));
  EXPECT_THAT(error("strategy/2\",\"model", "strategy/1\",\"model"), HasSubstr("strategy: schema"));
}

// Any bytes are refused, or have a meaning that survives writing and reading.
TEST(SavedState, MutationsAreRefusedOrRead) {
  core::Rng rng(5);
  const std::string texts[] = {to_json(saved_rank()), to_json(saved_tuner())};
  int read = 0;
  for (int i = 0; i < 4'000; ++i) {
    std::string text = texts[i % 2];
    for (uint64_t changes = 1 + rng.below(3); changes > 0; --changes) {
      const size_t at = rng.below(text.size());
      switch (rng.below(3)) {
        case 0: text[at] = static_cast<char>(rng.below(256)); break;
        case 1: text.erase(at, 1 + rng.below(20)); break;
        default: text.insert(at, text.substr(rng.below(text.size()), rng.below(20)));
      }
    }
    if (const auto rank = parse_saved_rank(text, kKnown)) {
      ++read;
      EXPECT_EQ(parse_saved_rank(to_json(rank.value()), kKnown).value(), rank.value());
      EXPECT_NO_THROW((void)Agreement(rank.value().agreement));
    }
    if (const auto tuner = parse_saved_tuner(text, kKnown)) ++read;
  }
  EXPECT_GT(read, 10) << "some change nothing that matters";
}

TEST(SavedState, AnotherJobIsNamed) {
  const Job job = journal_job(table());
  EXPECT_TRUE(same_job(job, job).ok());
  const auto error = [&](void (*change)(Job&)) {
    Job now = job;
    change(now);
    const core::Status same = same_job(job, now);
    return same.ok() ? "" : same.error().message;
  };
  EXPECT_EQ(error([](Job& now) { now.fidelity = core::Fidelity::half; }), "fidelity was lossy, now it is half");
  EXPECT_EQ(error([](Job& now) { now.codecs.pop_back(); }), "compressors was none,topk:0.02, now it is none");
  EXPECT_EQ(error([](Job& now) { now.host_threads = 3; }), "host_threads was 1, now it is 3");
  EXPECT_EQ(error([](Job& now) { now.forward_overlap = true; }), "forward_overlap was false, now it is true");
  EXPECT_EQ(error([](Job& now) { now.memory_bytes = 5; }), "memory_budget was 9223372036854775807, now it is 5");
  EXPECT_EQ(error([](Job& now) { now.policy = "fixed"; }), "policy was mergecomp, now it is fixed");
  EXPECT_EQ(error([](Job& now) { now.tuning.seed = 8; }), "seed was 7, now it is 8");
  EXPECT_EQ(error([](Job& now) { now.tuning.budget_steps = 0; }), "tuning_budget was 400, now it is 0");
  EXPECT_EQ(error([](Job& now) { now.tuning.retune = false; }), "options of tuning were others");
  EXPECT_NE(error([](Job& now) { now.ranks.size = 2; }), "");
  EXPECT_NE(error([](Job& now) { now.tuning.lossy_after = 4; }), "");
  EXPECT_NE(error([](Job& now) { now.tuning.budget_share = 0.5; }), "");
}

}  // namespace
}  // namespace gradtune::tuner
