// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// Decisions alone give the state of a job: tested against the tuner that took them, and in words.
#include "tuner/standing.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/tuner/changing_job.h"
#include "tuner/decision_words.h"

namespace gradtune::tuner {
namespace {

using State = Standing::State;
using testing::HasSubstr;
using testing::StartsWith;

// Follows a job, and compares the two after every step.
class Follower {
 public:
  void follow(const SimulatedJob& job) {
    for (; told_ < job.decisions.size(); ++told_) story_.learn(job.decisions[told_]);
    const Outcome& outcome = job.tuner->outcome();
    const Standing& standing = story_.standing();
    ASSERT_EQ(standing.state == State::committed, outcome.committed) << job.steps.size();
    ASSERT_EQ(standing.tuning_steps, outcome.steps);
    ASSERT_DOUBLE_EQ(standing.tuning_cost_ms, outcome.cost_ms);
    ASSERT_EQ(standing.first_commit, outcome.first_commit);
    ASSERT_EQ(standing.label.empty() ? "fp32" : standing.label, job.tuner->chosen().label) << job.steps.size();
    if (outcome.committed) {
      ASSERT_EQ(standing.comparison, static_cast<const Comparison&>(outcome));
      ASSERT_EQ(standing.pairs, outcome.pairs);
    }
  }
  const Standing& standing() const { return story_.standing(); }
  std::string words() const { return in_words(story_.standing()); }

 private:
  Story story_;
  size_t told_ = 0;
};

TEST(Story, OfAJobWhoseLinkChangesIsThatOfItsTuner) {
  for (const auto& [before, after] : {std::pair(kFast, kSlow), std::pair(kSlow, kFast)}) {
    ChangingJob job({.before = before, .after = after});
    Follower follower;
    const auto steps = [&](int n) {
      for (int i = 0; i < n && !testing::Test::HasFatalFailure(); ++i) {
        job.steps(1);
        follower.follow(*job);
      }
    };
    steps(500);
    EXPECT_THAT(follower.words(), StartsWith("committed "));
    const std::string first = follower.standing().label;
    job.change_now();
    steps(800);
    ASSERT_TRUE(follower.standing().former) << "what was committed is not best any more";
    EXPECT_EQ(follower.standing().former->label, first);
    EXPECT_THAT(follower.words(), HasSubstr(first));
  }
}

// From that step on, the last rank finds the sparse strategy over its budget.
TEST(Story, OfADropSaysWhyAndWhatRunsInstead) {
  constexpr int64_t kFrom = 300;
  const policies::Candidate full = candidate("fp32", 0), half = candidate("bf16 baseline", 1, "bf16");
  policies::Candidate sparse = candidate("sparse", 3, "topk", 3);
  int32_t tensor = 0;
  for (core::Bucket& bucket : sparse.strategy.buckets) bucket.slices[0].tensor = tensor++;
  core::set_default_flow(sparse.strategy);
  for (const double repaired_ms : {65.0, 101.0}) {
    JobOptions options;
    options.excess = [](int64_t at, const std::string& label) {
      return label == "sparse" && at >= kFrom
                 ? core::Excess{core::Excess::Kind::error, /*bucket=*/1, /*value=*/0.3592, /*allowed=*/0.3589}
                 : core::Excess();
    };
    SimulatedJob job(
        options,
        {{"fp32", 120}, {"bf16 baseline", 100}, {"sparse", 50}, {"sparse, as the baseline: bucket 1", repaired_ms}},
        {{{sparse}, false}, {{sparse}, true}}, {full, half});
    Follower follower;
    std::string at_once;
    for (int64_t step = 0; step < kFrom + 200 && !testing::Test::HasFatalFailure(); ++step) {
      job.one_step();
      follower.follow(job);
      if (step == kFrom - 1) {
        EXPECT_THAT(follower.words(), StartsWith("committed sparse: 100.0 -> 50.0 ms a step"));
      }
      if (step == kFrom + 5) at_once = follower.words();
    }
    const std::string dropped =
        "sparse was dropped in step 300: its compression loses more than it may (bucket 1: 0.3592, allowed 0.3589)";
    EXPECT_THAT(at_once, StartsWith(dropped));
    EXPECT_THAT(at_once,
                HasSubstr("; the baseline, bf16 at 100.0 ms a step, runs instead while sparse, as the baseline: "
                          "bucket 1 is confirmed; tuning took "));
    if (repaired_ms < 100) {
      EXPECT_THAT(follower.words(), StartsWith("committed sparse, as the baseline: bucket 1: 100.0 -> 65.0 ms a step"));
      EXPECT_THAT(follower.words(), HasSubstr("; before, " + dropped));
    } else {
      EXPECT_THAT(follower.words(), StartsWith(dropped));
      EXPECT_THAT(follower.words(),
                  HasSubstr("; the baseline is back, bf16 at 100.0 ms a step: no gain was confirmed; tuning took"));
    }
  }
}

std::string told(State state, const std::vector<Decision>& decisions) {
  Job job{.tuning = {.budget_steps = state == State::pinned ? 0 : 400},
          .imported = policies::Candidate{{}, "the file's"}};
  Story story(job);
  for (const Decision& decision : decisions) story.learn(decision);
  return in_words(story.standing());
}

Decision decision(int64_t step, What what, const std::string& label, double value = 0) {
  return {.step = step, .stage = Stage::watch, .what = what, .label = label, .value = value};
}

TEST(Story, OfAPinnedStrategySaysWhetherItStays) {
  const Decision found = decision(40, What::over_error_budget, "the file's, bucket 3: 12, allowed 10", 12);
  EXPECT_EQ(told(State::pinned, {}), "the file's is pinned, and nothing is tuned");
  EXPECT_EQ(told(State::pinned, {found, decision(40, What::warn, "the file's")}),
            "the file's is pinned, and stays although its compression loses more than it may (bucket 3: 12, allowed "
            "10)");
  EXPECT_EQ(told(State::pinned, {found, decision(40, What::give_up, "the file's")}),
            "the file's was dropped in step 40: its compression loses more than it may (bucket 3: 12, allowed 10); the "
            "baseline, all_reduce, runs instead");
  EXPECT_EQ(told(State::pinned, {found, decision(40, What::give_up, "the file's"),
                                 decision(40, What::run_instead, "bf16 all_reduce, 8 buckets", 90)}),
            "the file's was dropped in step 40: its compression loses more than it may (bucket 3: 12, allowed 10); "
            "bf16 all_reduce, 8 buckets runs instead");
}

TEST(Story, OfAnImportedStrategyThatDoesNotHold) {
  EXPECT_EQ(told(State::undecided, {}), "nothing is confirmed yet, the file's runs");
  EXPECT_EQ(told(State::undecided, {decision(50, What::baseline, "bf16 all_reduce baseline", 80),
                                    decision(90, What::drop_imported, "nothing looks faster")}),
            "the file's was dropped in step 90: nothing looks faster; nothing is confirmed since, bf16 all_reduce "
            "runs");
}

TEST(Story, OfWhatIsBackAgainSaysThatItWasDropped) {
  const Decision commit = decision(90, What::commit, "packed", 0.25);
  EXPECT_EQ(told(State::undecided, {commit, decision(200, What::drop_committed, "packed", 0.01), commit}),
            "committed packed: gain 25.0 % (at least 0.0 % with 96 % confidence), baseline all_reduce; it is back "
            "again: packed was dropped in step 200: it is not faster than the baseline any more");
  EXPECT_EQ(told(State::undecided, {commit, decision(300, What::commit, "topk", 0.5)}),
            "committed topk: gain 50.0 % (at least 0.0 % with 96 % confidence), baseline all_reduce; it replaced "
            "packed");
}

}  // namespace
}  // namespace gradtune::tuner
