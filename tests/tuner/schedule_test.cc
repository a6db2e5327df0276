// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
#include "tuner/schedule.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <set>
#include <utility>
#include <vector>

namespace gradtune::tuner {
namespace {

constexpr int kLead = 3;
using testing::ElementsAre;

// Runs the schedule, with the delay that commands have.
class Job {
 public:
  explicit Job(int32_t slot) : schedule(kLead, slot), in_force_({{0, slot}}) {}

  void steps(int n) {
    for (const int64_t last = step_ + n; step_ < last; ++step_) {
      if (in_force_.contains(step_)) slot_ = in_force_[step_];
      ran.push_back(slot_);
      const double ms = step_ms.contains(step_) ? step_ms[step_] : 100 + slot_;
      schedule.record({.step = step_,
                       .slot = slot_,
                       .step_ms = ms,
                       .finite = !nonfinite.contains(step_),
                       .excluded = excluded.contains(step_)});
      if (const auto next = schedule.next_slot()) in_force_[step_ + kLead] = *next;
      for (const Score& score : schedule.take_scores()) {
        scores.push_back(score);
        scored_in.push_back(step_);
      }
    }
  }

  Schedule schedule;
  std::map<int64_t, double> step_ms;
  std::set<int64_t> excluded, nonfinite;
  std::vector<int32_t> ran;
  std::vector<Score> scores;
  std::vector<int64_t> scored_in;

 private:
  std::map<int64_t, int32_t> in_force_;
  int32_t slot_ = -1;
  int64_t step_ = 0;
};

TEST(Schedule, BlocksFollowOneAnotherWithoutAGapAndThenItRests) {
  Job job(0);
  job.schedule.rest(7);
  job.schedule.add({.slot = 1, .dropped = 1, .scored = 2});
  job.schedule.add({.slot = 2, .dropped = 1, .scored = 1});
  job.schedule.add({.slot = 1, .dropped = 0, .scored = 2});
  EXPECT_FALSE(job.schedule.is_done());
  job.steps(13);
  EXPECT_THAT(job.ran, ElementsAre(0, 0, 0, 1, 1, 1, 2, 2, 1, 1, 7, 7, 7));
  EXPECT_THAT(job.scored_in, ElementsAre(5, 7, 9)) << "as soon as the data are in";
  EXPECT_EQ(101, job.scores[0].step_ms);
  EXPECT_EQ(102, job.scores[1].step_ms);
  EXPECT_TRUE(job.schedule.is_done());
  EXPECT_EQ(7, job.schedule.slot());
  std::vector<std::pair<int64_t, int64_t>> ran;
  for (const Score& score : job.scores) ran.emplace_back(score.begin, score.end);
  EXPECT_THAT(ran, ElementsAre(std::pair(3, 6), std::pair(6, 8), std::pair(8, 10)));
}

TEST(Schedule, TheTransientAfterASwitchIsNotScored) {
  Job job(0);
  job.schedule.add({.slot = 1, .dropped = 2, .scored = 3});
  job.step_ms = {{3, 1000}, {4, 500}, {5, 10}, {6, 30}, {7, 20}, {8, 1}};
  job.steps(10);
  EXPECT_EQ(20, job.scores.at(0).step_ms);
  EXPECT_EQ(3, job.scores[0].steps);
}

TEST(Schedule, StepsThatCanNotBeScoredExtendTheBlock) {
  Job job(0);
  job.schedule.rest(0);
  job.schedule.add({.slot = 1, .dropped = 1, .scored = 4});
  job.excluded = {4};
  job.nonfinite = {5};
  job.step_ms = {{4, 1e6}, {5, 1e6}};
  job.steps(12);
  EXPECT_THAT(job.ran, ElementsAre(0, 0, 0, 1, 1, 1, 1, 1, 1, 1, 0, 0));
  EXPECT_EQ(4, job.scores.at(0).steps);
  EXPECT_EQ(101, job.scores[0].step_ms);
}

TEST(Schedule, ADroppedStepMayBeExcluded) {
  Job job(0);
  job.schedule.rest(0);
  job.schedule.add({.slot = 1, .dropped = 1, .scored = 2});
  job.excluded = {3};
  job.steps(8);
  EXPECT_THAT(job.ran, ElementsAre(0, 0, 0, 1, 1, 1, 0, 0));
}

TEST(Schedule, WhenTheNextBlockIsOnItsWayAStepIsMissing) {
  Job job(0);
  job.schedule.add({.slot = 1, .dropped = 1, .scored = 4});
  job.schedule.add({.slot = 2, .dropped = 1, .scored = 4});
  job.excluded = {7, 9, 10, 11, 12};
  job.steps(20);
  EXPECT_EQ(3, job.scores.at(0).steps);
  EXPECT_EQ(101, job.scores[0].step_ms);
  EXPECT_EQ(4, job.scores.at(1).steps) << "nothing comes after it, so it runs on";
}

TEST(Schedule, ABlockWithoutHalfOfItsStepsHasNoScore) {
  Job job(0);
  job.schedule.add({.slot = 1, .dropped = 1, .scored = 4, .patience = 2});
  job.schedule.add({.slot = 2, .dropped = 1, .scored = 4});
  job.nonfinite = {4, 5, 6, 7, 8};
  job.steps(20);
  EXPECT_EQ(1, job.scores.at(0).steps);
  EXPECT_FALSE(job.scores[0].step_ms.has_value());
  EXPECT_EQ(102, job.scores.at(1).step_ms);
}

TEST(Schedule, ASlowBlockIsCutShort) {
  const auto steps_of_1 = [](std::map<int64_t, double> step_ms, double limit_ms) {
    Job job(0);
    job.schedule.rest(0);
    job.schedule.add({.slot = 1, .dropped = 1, .scored = 9, .limit_ms = limit_ms});
    job.step_ms = std::move(step_ms);
    job.steps(20);
    return std::count(job.ran.begin(), job.ran.end(), 1);
  };
  EXPECT_EQ(10, steps_of_1({}, 200));
  EXPECT_EQ(10, steps_of_1({{3, 399}}, 200)) << "one slow step is a spike";
  EXPECT_EQ(3, steps_of_1({{3, 401}}, 200)) << "no spike is as slow as that";
  EXPECT_EQ(5, steps_of_1({{4, 201}, {5, 201}}, 200)) << "two are none";
  EXPECT_EQ(4, steps_of_1({}, 60));
}

TEST(Schedule, StepsOfAnotherSlotAreNotScored) {
  Job job(0);
  job.schedule.add({.slot = 1, .dropped = 1, .scored = 2});
  job.steps(4);
  for (int64_t step : {4, 5}) {
    job.schedule.record({.step = step, .slot = 0, .step_ms = 1});
    job.schedule.next_slot();
  }
  const std::vector<Score> scores = job.schedule.take_scores();
  ASSERT_EQ(1, scores.size());
  EXPECT_EQ(0, scores[0].steps);
}

TEST(Schedule, ABlockThatDidNotTakePlaceIsTakenBack) {
  Job job(0);
  job.schedule.rest(0);
  job.schedule.add({.slot = 1, .dropped = 1, .scored = 2});
  job.schedule.add({.slot = 2, .dropped = 1, .scored = 2});
  EXPECT_FALSE(job.schedule.take_back(1)) << "not the last";
  EXPECT_FALSE(job.schedule.take_back(2)) << "not put in force";
  job.steps(3);
  EXPECT_TRUE(job.schedule.take_back(1));
  EXPECT_EQ(0, job.schedule.slot());
  EXPECT_TRUE(job.schedule.is_done());

  Job late(0);
  late.schedule.add({.slot = 1, .dropped = 1, .scored = 2});
  late.steps(4);
  EXPECT_FALSE(late.schedule.take_back(1)) << "it has begun";
}

TEST(Schedule, WhatIsGivenUpRunsNoLongerThanItHasTo) {
  Job job(0);
  job.schedule.add({.slot = 1, .dropped = 1, .scored = 9});
  job.schedule.add({.slot = 2, .dropped = 1, .scored = 1});
  job.schedule.add({.slot = 1, .dropped = 1, .scored = 1});
  job.steps(5);
  job.schedule.give_up(1);
  job.steps(8);
  EXPECT_THAT(job.ran, ElementsAre(0, 0, 0, 1, 1, 1, 1, 1, 2, 2, 0, 0, 0));
  EXPECT_TRUE(job.schedule.is_done());
}

TEST(Schedule, StoppingForgetsAll) {
  Job job(0);
  for (int32_t slot : {1, 2, 3}) job.schedule.add({.slot = slot});
  job.steps(6);
  job.schedule.stop(9);
  EXPECT_TRUE(job.schedule.is_done());
  EXPECT_EQ(9, job.schedule.slot());
  job.steps(20);
  EXPECT_TRUE(job.scores.empty());
}

}  // namespace
}  // namespace gradtune::tuner
