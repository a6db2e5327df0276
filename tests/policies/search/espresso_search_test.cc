// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// Tests the claims of the paper on Espresso's algorithms, against brute force.
#include "policies/search/espresso_search.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <set>
#include <stdexcept>

#include "tests/policies/affine_cost.h"

namespace gradtune::policies {
namespace {

using AffineCostRow = testing::AffineCost::Row;

// Tensors of a few sizes, several of each.
std::vector<Atom> random_tensors(core::Rng& rng, size_t size) {
  constexpr int64_t kSizes[] = {3'000, 100'000, 1'000'000};
  std::vector<Atom> tensors;
  double ready_us = 0;
  for (size_t t = 0; t < size; ++t) {
    tensors.push_back({kSizes[rng.below(3)], ready_us});
    ready_us += static_cast<double>(rng.below(2'000));
  }
  return tensors;
}

TEST(Espresso, SmallTensorsAreNotForOptionsThatLose) {
  AffineCostRow all, little;
  all.us_per_element[kLink] = 1;
  little.us_per_element[kLink] = 0.01;
  little.loses = true;
  const std::vector<Atom> tensors = {{1000, 0}, {10, 0, true}};
  const Plan plan = choose_options(testing::AffineCost({all, little}), tensors);
  EXPECT_EQ(plan.messages, (std::vector<Message>{{0, 0, 1}, {1, 1, 0}}));
}

// The end of the step for every subset of the tensors that may go to the host.
struct Ends {
  double best_us, best_of_first_us;  // over all subsets; over those with the first tensors of each size
};
Ends all_ends(const CostModel& model, std::span<const Atom> tensors, const Plan& plan) {
  std::vector<size_t> candidates;
  for (size_t t = 0; t < tensors.size(); ++t) {
    if (plan.messages[t].option == 1) candidates.push_back(t);
  }
  Ends ends{plan.end_us, plan.end_us};
  for (unsigned subset = 0; subset < 1U << candidates.size(); ++subset) {
    std::vector<Message> messages = plan.messages;
    std::set<int64_t> stays;  // sizes with a tensor that stayed
    bool is_first = true;
    for (size_t c = 0; c < candidates.size(); ++c) {
      const int64_t numel = tensors[candidates[c]].numel;
      if ((subset >> c & 1) == 1) {
        messages[candidates[c]].option = 2;
        is_first = is_first && !stays.contains(numel);
      } else {
        stays.insert(numel);
      }
    }
    const double end_us = replay_us(model, tensors, messages);
    ends.best_us = std::min(ends.best_us, end_us);
    if (is_first) ends.best_of_first_us = std::min(ends.best_of_first_us, end_us);
  }
  return ends;
}

TEST(Espresso, OffloadIsTheBestOfAllSubsetsInAlmostAllJobs) {
  core::Rng rng(1);
  int moved = 0, missed = 0;
  double worst = 1;
  for (int job = 0; job < 1000; ++job) {
    const testing::AffineCost model = testing::random_cost(rng, 2 << rng.below(4));
    const std::vector<Atom> tensors = random_tensors(rng, 2 + rng.below(9));
    const Plan plan = choose_options(model, tensors);
    const Plan found = offload(model, tensors, plan);
    const Ends ends = all_ends(model, tensors, plan);
    EXPECT_EQ(found.end_us, replay_us(model, tensors, found.messages));
    EXPECT_DOUBLE_EQ(found.end_us, ends.best_of_first_us) << "job " << job;
    moved += found.end_us < plan.end_us ? 1 : 0;
    missed += found.end_us > ends.best_us * (1 + 1e-12) ? 1 : 0;
    worst = std::max(worst, found.end_us / ends.best_us);
  }
  EXPECT_GT(moved, 80) << "in many jobs the host is of use";
  EXPECT_LE(missed, 15) << "subsets that Lemma 1 rules out are better in few jobs";
  EXPECT_LE(worst, 1.05);
}

// Counts its calls, and stops a caller that asks too often.
class Counting final : public CostModel {
 public:
  Counting(const CostModel& of, int64_t most) : of_(of), left_(most) {}

  std::span<const core::Option> options() const override { return of_.options(); }
  std::optional<size_t> on_host(size_t option) const override { return of_.on_host(option); }
  bool loses(size_t option) const override { return of_.loses(option); }
  Work work(size_t option, int64_t numel, core::DType dtype) const override {
    if (--left_ < 0) throw std::runtime_error("the model was asked too often");
    return of_.work(option, numel, dtype);
  }

 private:
  const CostModel& of_;
  mutable int64_t left_;
};

TEST(Espresso, OffloadKeepsToItsLimitHoweverManySizesThereAre) {
  constexpr int64_t kMostReplays = 2000;
  core::Rng rng(4);
  int moved = 0;
  for (int job = 0; job < 30; ++job) {
    const testing::AffineCost model = testing::random_cost(rng, 4);
    std::vector<Atom> tensors;
    for (int64_t size = 0; size < 40; ++size) {
      for (int twin = 0; twin < 2; ++twin) tensors.push_back({20'000 * (1 + size), 500.0 * static_cast<double>(size)});
    }
    const Plan plan = choose_options(model, tensors);
    const Counting counting(model, kMostReplays * static_cast<int64_t>(tensors.size()));
    Plan found;
    ASSERT_NO_THROW(found = offload(counting, tensors, plan, kMostReplays));
    EXPECT_LE(found.end_us, plan.end_us);
    EXPECT_EQ(found.end_us, replay_us(model, tensors, found.messages));
    moved += found.end_us < plan.end_us ? 1 : 0;
  }
  EXPECT_GT(moved, 3) << "in some jobs the host is of use";
}

TEST(Espresso, OffloadGroupByGroupIsNearlyTheBestOfAllCombinations) {
  core::Rng rng(5);
  int moved = 0, missed = 0;
  double worst = 1;
  for (int job = 0; job < 1000; ++job) {
    const testing::AffineCost model = testing::random_cost(rng, 4);
    const std::vector<Atom> tensors = random_tensors(rng, 12);
    const Plan plan = choose_options(model, tensors);
    const Plan all = offload(model, tensors, plan), some = offload(model, tensors, plan, /*most_replays=*/50);
    moved += some.end_us < plan.end_us ? 1 : 0;
    missed += some.end_us > all.end_us * (1 + 1e-12) ? 1 : 0;
    worst = std::max(worst, some.end_us / all.end_us);
  }
  EXPECT_GT(moved, 80);
  EXPECT_LE(missed, 20);
  EXPECT_LE(worst, 1.05);
}

TEST(Espresso, OptionsAreChosenOnTheDevice) {
  core::Rng rng(6);
  int encoded = 0;
  for (int job = 0; job < 200; ++job) {
    const testing::AffineCost model = testing::random_cost(rng, 4);
    for (const Message& message : choose_options(model, random_tensors(rng, 12)).messages) {
      EXPECT_NE(message.option, 2) << "what moves to the host is for Algorithm 2 to say";
      encoded += message.option == 1 ? 1 : 0;
    }
  }
  EXPECT_GT(encoded, 500);
}

TEST(Espresso, EveryTensorHasTheOptionThatEndsFirstGivenTheOthersAtItsTurn) {
  core::Rng rng(2);
  for (int job = 0; job < 200; ++job) {
    const testing::AffineCost model = testing::random_cost(rng, 4);
    const std::vector<Atom> tensors = random_tensors(rng, 12);
    const Plan plan = choose_options(model, tensors);
    // The smallest tensors come last: no other option of the very last one is better.
    size_t last = 0;
    for (size_t t = 0; t < tensors.size(); ++t) {
      if (std::pair(tensors[t].numel, t) < std::pair(tensors[last].numel, last)) last = t;
    }
    if (plan.messages[last].option == 0) continue;    // it may have been closed before
    for (int32_t option = 0; option < 2; ++option) {  // on the device
      std::vector<Message> messages = plan.messages;
      messages[last].option = option;
      EXPECT_GE(replay_us(model, tensors, messages), plan.end_us);
    }
  }
}

TEST(Espresso, TensorsBeforeTheLastGapAreLeftAsTheyAre) {
  // The link is free again long before the second tensor is ready, so compressing the first one gains nothing.
  AffineCostRow plain, coded;
  plain.us_per_element = {0, 0, 1e-3, 0};
  coded.fixed_us = {10, 0, 10, 0};
  coded.us_per_element = {0, 0, 1e-5, 0};
  const testing::AffineCost model({plain, coded});
  const std::vector<Atom> tensors = {{1'000'000, 0}, {900'000, 50'000}, {900'000, 50'100}};
  const Plan plan = choose_options(model, tensors);
  EXPECT_EQ(plan.messages[0].option, 0);
  EXPECT_EQ(plan.messages[1].option, 1);
  EXPECT_EQ(plan.messages[2].option, 1);
}

TEST(Espresso, NothingToSendIsAPlan) {
  core::Rng rng(3);
  EXPECT_EQ(choose_options(testing::random_cost(rng, 2), {}), Plan{});
}

}  // namespace
}  // namespace gradtune::policies
