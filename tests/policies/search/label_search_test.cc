// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// Tests the joint search against brute force: every partition with every choice of options.
#include "policies/search/label_search.h"

#include <gtest/gtest.h>

#include <set>

#include "tests/policies/affine_cost.h"
#include "tests/policies/brute_force.h"

namespace gradtune::policies {
namespace {

std::vector<Atom> random_atoms(core::Rng& rng, size_t size) {
  std::vector<Atom> atoms;
  double ready_us = 0;
  for (size_t a = 0; a < size; ++a) {
    atoms.push_back({static_cast<int64_t>(1 + rng.below(rng.below(4) == 0 ? 4'000'000 : 100'000)), ready_us});
    ready_us += static_cast<double>(rng.below(3'000));
  }
  return atoms;
}

void expect_a_plan(const CostModel& model, std::span<const Atom> atoms, const Plan& plan) {
  int32_t next = 0;
  for (const Message& message : plan.messages) {
    EXPECT_EQ(message.first, next);
    EXPECT_GE(message.last, message.first);
    next = message.last + 1;
  }
  EXPECT_EQ(next, static_cast<int32_t>(atoms.size()));
  EXPECT_EQ(plan.end_us, replay_us(model, atoms, plan.messages));
}

TEST(LabelSearch, FindsTheBestOfAllPartitionsAndOptions) {
  core::Rng rng(1);
  std::set<size_t> sizes, options;
  for (int job = 0; job < 500; ++job) {
    const int ranks = 2 << rng.below(6);
    const testing::AffineCost model = testing::random_cost(rng, ranks);
    const std::vector<Atom> atoms = random_atoms(rng, 1 + rng.below(8));
    const double best = testing::best_us(model, atoms);
    const SearchResult exact = search_labels(model, atoms, {.tolerance = 0});
    ASSERT_FALSE(exact.plans.empty());
    expect_a_plan(model, atoms, exact.plans[0]);
    EXPECT_DOUBLE_EQ(exact.plans[0].end_us, best) << "job " << job;
    EXPECT_EQ(exact.least_us, exact.plans[0].end_us);
    const SearchResult found = search_labels(model, atoms);
    EXPECT_LE(found.plans[0].end_us, 1.01 * best) << "job " << job;
    EXPECT_LE(found.least_us, best + 1e-6) << "job " << job;
    sizes.insert(exact.plans[0].messages.size());
    for (const Message& message : exact.plans[0].messages) options.insert(static_cast<size_t>(message.option));
  }
  EXPECT_GE(sizes.size(), 4u) << "the jobs ask for different partitions";
  EXPECT_EQ(options.size(), 3u) << "the jobs ask for every option";
}

TEST(LabelSearch, FindsTheBestForGradientsOf16BitsAndOfSeveralTypes) {
  core::Rng rng(6);
  std::set<size_t> sizes;
  for (int job = 0; job < 300; ++job) {
    const testing::AffineCost model = testing::random_cost(rng, 2 << rng.below(6));
    std::vector<Atom> atoms = random_atoms(rng, 1 + rng.below(7));
    const bool is_mixed = job % 2 == 0;
    for (Atom& atom : atoms) atom.dtype = is_mixed ? core::kDTypes[rng.below(3)] : core::DType::bf16;
    const double best = testing::best_us(model, atoms);
    const SearchResult exact = search_labels(model, atoms, {.tolerance = 0});
    ASSERT_FALSE(exact.plans.empty());
    expect_a_plan(model, atoms, exact.plans[0]);
    EXPECT_DOUBLE_EQ(exact.plans[0].end_us, best) << "job " << job;
    EXPECT_EQ(exact.least_us, exact.plans[0].end_us);
    for (const Message& message : exact.plans[0].messages) {
      for (int32_t a = message.first; a <= message.last; ++a) {
        EXPECT_EQ(atoms[static_cast<size_t>(a)].dtype, atoms[static_cast<size_t>(message.first)].dtype);
      }
    }
    if (!is_mixed) sizes.insert(exact.plans[0].messages.size());
  }
  EXPECT_GE(sizes.size(), 3u);
}

TEST(LabelSearch, TheErrorBoundHoldsHoweverEarlyItStops) {
  core::Rng rng(2);
  double largest = 0;
  for (int job = 0; job < 60; ++job) {
    const testing::AffineCost model = testing::random_cost(rng, 4);
    const std::vector<Atom> atoms = random_atoms(rng, 14);
    const double best = search_labels(model, atoms, {.tolerance = 0, .most_work = 1'000'000'000}).plans[0].end_us;
    const SearchResult hasty = search_labels(model, atoms, {.tolerance = 0, .most_work = 1});
    expect_a_plan(model, atoms, hasty.plans[0]);
    EXPECT_GE(hasty.plans[0].end_us, best - 1e-6);
    EXPECT_LE(hasty.least_us, best + 1e-6) << "job " << job;
    largest = std::max(largest, hasty.plans[0].end_us - hasty.least_us);
  }
  EXPECT_GT(largest, 0) << "some search stopped early";
}

TEST(LabelSearch, WithoutMergingEveryAtomIsAMessage) {
  core::Rng rng(3);
  const testing::AffineCost model = testing::random_cost(rng, 2);
  const std::vector<Atom> atoms = random_atoms(rng, 30);
  const SearchResult apart = search_labels(model, atoms, {.merges = false, .tolerance = 0});
  expect_a_plan(model, atoms, apart.plans[0]);
  EXPECT_EQ(apart.plans[0].messages.size(), atoms.size());
  EXPECT_LE(search_labels(model, atoms, {.tolerance = 0}).plans[0].end_us, apart.plans[0].end_us);
}

// Option 0 sends everything; option 1 sends nearly nothing, and is lossy.
testing::AffineCost lossy_cost() {
  testing::AffineCost::Row all, little;
  all.us_per_element[kLink] = 1;
  little.us_per_element[kLink] = 0.01;
  little.loses = true;
  return testing::AffineCost({all, little});
}

TEST(LabelSearch, SmallAtomsAreNotForOptionsThatLose) {
  const testing::AffineCost model = lossy_cost();
  const std::vector<Atom> atoms = {{1000, 0}, {1000, 0}, {10, 0, true}, {10, 0, true}};
  const SearchResult found = search_labels(model, atoms, {.tolerance = 0});
  ASSERT_FALSE(found.plans.empty());
  EXPECT_NEAR(found.plans[0].end_us, 20 + 20, 1e-9);
  for (const Message& message : found.plans[0].messages) EXPECT_EQ(message.option, message.last >= 2 ? 0 : 1);
}

TEST(LabelSearch, PlansDifferAndTheBestComesFirst) {
  core::Rng rng(4);
  const testing::AffineCost model = testing::random_cost(rng, 4);
  const std::vector<Atom> atoms = random_atoms(rng, 60);
  const std::vector<Plan> plans = search_labels(model, atoms, {.most_plans = 5}).plans;
  EXPECT_LE(plans.size(), 5u);
  for (size_t p = 0; p < plans.size(); ++p) {
    expect_a_plan(model, atoms, plans[p]);
    EXPECT_GE(plans[p].end_us, plans[0].end_us);
    for (size_t q = 0; q < p; ++q) EXPECT_NE(plans[p].messages, plans[q].messages);
  }
}

TEST(LabelSearch, NothingToSendIsAPlan) {
  core::Rng rng(5);
  const testing::AffineCost model = testing::random_cost(rng, 2);
  const SearchResult nothing = search_labels(model, {});
  ASSERT_EQ(nothing.plans.size(), 1u);
  EXPECT_EQ(nothing.plans[0], Plan{});
  EXPECT_EQ(nothing.least_us, 0);
}

}  // namespace
}  // namespace gradtune::policies
