// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
#include "policies/space/sparse_tensors.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <numeric>
#include <set>

#include "engine/compress/compressor.h"
#include "engine/core/rng.h"
#include "policies/cost/program_cost.h"
#include "policies/policy.h"
#include "policies/space/baseline.h"
#include "tests/policies/timeline_job.h"

namespace gradtune::policies {
namespace {

// Growth of density as counted in public data (One Billion Word and Criteo: rows that 2 to 32 ranks touch).
struct Counted {
  const char* data;
  std::vector<double> gamma;  // of 1, 2, 4, 8, ... ranks
};
const Counted kCounted[] = {
    {"2560 tokens, seeded alike", {1, 1.14, 1.36, 1.74, 2.30, 3.21}},
    {"2560 tokens, seed per rank", {1, 1.78, 3.11, 5.35, 9.03, 14.8}},
    {"20480 tokens, seeded alike", {1, 1.30, 1.78}},
    {"20480 tokens, seed per rank", {1, 1.66, 2.74}},
    {"Criteo, batch 1024", {1, 1.62, 2.73, 4.55, 7.43}},
};

// Planners know the density of one rank and of all; a power law gives those between.
TEST(SparseTensors, DensitiesOfSomeRanksAreAboutThoseOfCountedData) {
  constexpr double kDensity = 0.00666;
  for (const auto& [data, gamma] : kCounted) {
    const core::Content content{.row = 1, .of_one = kDensity, .of_all = kDensity * gamma.back()};
    const int ranks = 1 << (gamma.size() - 1);
    for (size_t i = 0; i < gamma.size(); ++i) {
      EXPECT_NEAR(content.at(1 << i, ranks) / kDensity, gamma[i], 0.18 * gamma[i]) << data << ", " << (1 << i);
    }
  }
}

Knowledge job(int ranks, std::vector<core::TensorInfo> tensors) {
  Knowledge knowledge{.ranks = {ranks, 0},
                      .fidelity = core::Fidelity::exact,
                      .codecs = {{"none"}, {"rows"}},
                      .traits = compress::known_traits(),
                      .host_threads = 1};
  knowledge.table.tensors = std::move(tensors);
  return knowledge;
}

core::TensorInfo matrix(const char* name, int64_t rows, int64_t width, double of_one = 1, double of_all = 1) {
  core::TensorInfo tensor{.name = name, .shape = {rows, width}, .numel = rows * width};
  if (of_one < 1) tensor.content = {.row = width, .of_one = of_one, .of_all = of_all};
  return tensor;
}

// Rates of a link with that many bytes a microsecond, and that time for a message.
CostTable link(int ranks, double bytes_per_us, double message_us) {
  CostTable table{.ranks = {ranks, 0}};
  for (const core::StepTraits& kind : core::step_table()) {
    if (kind.is_collective)
      table.collectives.push_back({kind.kind, core::Level::flat, message_us, 1 / bytes_per_us, 0});
  }
  for (const core::Place place : {core::Place::device, core::Place::host}) {
    for (const char* codec : {"none", "rows"}) {
      table.codecs.push_back({{codec}, place, 5, 2.5e-4, 5, 2.5e-4, 6e-5});
    }
  }
  table.scale_element_us = 2.5e-4;
  return table;
}

TEST(SparseTensors, EachIsABucketOfItsOwnAndTheRestStays) {
  const Knowledge knowledge = job(4, {matrix("a", 10, 4), matrix("table", 1000, 8, 0.01, 0.03), matrix("b", 10, 4),
                                      matrix("c", 5, 2), matrix("last", 500, 2, 0.1, 0.2)});
  const auto all = core::uniform(core::cut(knowledge.table, 1 << 20, 1 << 20, false), core::plain_all_reduce(), 1);
  const auto left =
      core::uniform(core::cut(without_sparse(knowledge.table), 1 << 20, 1 << 20, false), core::plain_all_reduce(), 1);
  for (const core::Strategy& before : {all, left}) {
    const core::Strategy strategy = with_sparse_tensors(before, knowledge, link(4, 125, 50));
    EXPECT_TRUE(core::validate(strategy, knowledge.table).ok())
        << core::validate(strategy, knowledge.table).error().message;
    ASSERT_EQ(strategy.buckets.size(), 4U);
    EXPECT_EQ(strategy.buckets[1].slices, (std::vector<core::Slice>{{1, 0, 8000}}));
    EXPECT_EQ(strategy.buckets[3].slices, (std::vector<core::Slice>{{4, 0, 1000}}));
    EXPECT_EQ(strategy.buckets[2].slices.size(), 2U);
    EXPECT_FALSE(strategy.buckets[1].option.codecs.empty());
  }
  const Knowledge dense = job(4, {matrix("a", 10, 4)});
  const auto same = core::uniform(core::cut(dense.table, 1 << 20, 1 << 20, false), core::plain_all_reduce(), 1);
  EXPECT_EQ(with_sparse_tensors(same, dense, link(4, 125, 50)), same);
}

const char* scheme_of(const core::Option& option) {
  if (option.codecs.empty()) return "dense";
  if (core::is_dimension(option.steps[1].level)) return "recursive_doubling";
  return core::collectives_of(option) == 1 ? "gather" : "two_step";
}

TEST(SparseTensors, TheOptionIsTheCheapestOfAll) {
  core::Rng rng(11);
  std::set<std::string> chosen;
  for (int i = 0; i < 400; ++i) {
    const auto ranks = static_cast<int>(2 + rng.below(32));
    const double of_one = std::pow(10, -4 * rng.uniform()), overlap = rng.uniform();
    const double of_all = std::min(0.999, of_one * std::pow(ranks, overlap));
    const auto tensor = matrix("table", 1 << (4 + rng.below(14)), 1 << rng.below(9), std::min(of_one, 0.999), of_all);
    const Knowledge knowledge = job(ranks, {tensor});
    const CostTable cost = link(ranks, std::pow(10, 1 + 3 * rng.uniform()), std::pow(10, 3 * rng.uniform()));
    const core::Option best = best_sparse_option(tensor, knowledge, cost);
    const core::Matrix rows{0, tensor.numel / tensor.content.row, tensor.content.row};
    const auto us = [&](const core::Option& option) {
      const auto work =
          program_work(cost, option, {tensor.numel, {&rows, 1}, tensor.content}, knowledge.traits, core::DType::f32);
      return std::accumulate(work->begin(), work->end(), 0.0);
    };
    for (const core::Option& other : sparse_options(knowledge)) EXPECT_LE(us(best), us(other));
    chosen.insert(scheme_of(best));
  }
  EXPECT_THAT(chosen, ::testing::ElementsAre("dense", "gather", "recursive_doubling", "two_step"));
}

TEST(SparseTensors, SumsThatAreSentAreAsDenseAsSumsOfSoManyRanks) {
  const core::TensorInfo tensor = matrix("table", 100'000, 8, 0.001, 0.003);
  const core::Matrix rows{0, 100'000, 8};
  const core::Option option = core::recursive_doubling({"rows"}, core::Place::device, 12);  // 3 x 2 x 2
  const std::vector<OpSize> sizes =
      op_sizes(option, {tensor.numel, {&rows, 1}, tensor.content}, {.size = 12}, compress::known_traits());
  const double of_row = 8 * 4 + 4;  // bytes
  const int summed[] = {1, 3, 6}, others[] = {2, 1, 1};
  for (size_t d = 0; d < 3; ++d) {
    const double expected = 100'000 * tensor.content.at(summed[d], 12) * of_row * others[d];
    EXPECT_NEAR(static_cast<double>(sizes[3 * d + 1].link_bytes), expected, 0.05 * expected);
    EXPECT_EQ(sizes[3 * d + 2].payloads, others[d] + 1);
  }
  EXPECT_NEAR(static_cast<double>(sizes[8].elements), 0.003 * static_cast<double>(tensor.numel), 1);
}

TEST(SparseTensors, TheChoiceHangsOnLatencyRanksDensityAndOverlap) {
  const auto choice = [](int ranks, double of_one, double gamma, double message_us) {
    const auto tensor = matrix("table", 1 << 20, 64, of_one, of_one * gamma);
    const core::Option best = best_sparse_option(tensor, job(ranks, {tensor}), link(ranks, 125, message_us));
    return scheme_of(best);
  };
  EXPECT_STREQ(choice(2, 0.01, 1.5, 50), "gather");
  EXPECT_STREQ(choice(16, 0.01, 2, 50), "two_step");
  EXPECT_STREQ(choice(16, 0.00001, 2, 5000), "recursive_doubling");  // 4 messages, not 15 or 30
  EXPECT_STREQ(choice(17, 0.00001, 2, 5000), "gather");              // half as many as two steps
  EXPECT_STREQ(choice(4, 0.01, 3.11, 50), "recursive_doubling");     // little overlap (section 2.3 of Zen)
  EXPECT_STREQ(choice(4, 0.01, 1.36, 50), "two_step");
  EXPECT_STREQ(choice(16, 0.99, 1.005, 50), "dense");
}

// The choice of `auto`, if the timeline gives the measured time of each candidate.
core::Strategy chosen_by_auto(const testing::TimelineJob& job) {
  core::Rng rng(1);
  const Knowledge knowledge = job.observed(0, rng);
  const auto policy = make_policy("auto", {}).value();
  Proposal proposal = policy->propose(knowledge);
  for (; !proposal.final; proposal = policy->propose(knowledge)) {
    for (const Candidate& candidate : proposal.candidates) {
      const uint64_t hash = core::hash(candidate.strategy);
      policy->learn({.strategy_hash = hash, .step_ms = job.step_ms(candidate.strategy), .steps = 4});
    }
  }
  return proposal.candidates.empty() ? baselines(knowledge.table, knowledge.fidelity)[0].strategy
                                     : proposal.candidates[0].strategy;
}

// Its first steps gather rows, and sum nothing.
TEST(SparseTensors, AutoFindsTheBestSchemeInAJobOfTablesAlone) {
  const core::TensorInfo table = matrix("table", 1 << 16, 64, 0.01, 0.02);
  const testing::TimelineJob tables{.knowledge = job(16, {table}), .truth = link(16, 125, 50)};
  const core::Option best = best_sparse_option(table, tables.knowledge, tables.truth);
  EXPECT_EQ(core::collectives_of(best), 2);
  EXPECT_EQ(chosen_by_auto(tables).buckets[0].option, best);
}

// It measures them for any model: their times are about the same.
TEST(SparseTensors, AutoMeasuresEachScheme) {
  const testing::TimelineJob tables{.knowledge = job(4, {matrix("table", 1 << 16, 64, 0.01, 0.03)}),
                                    .truth = link(4, 125, 50)};
  core::Rng rng(1);
  const Knowledge knowledge = tables.observed(0, rng);
  const Proposal proposal = make_policy("auto", {}).value()->propose(knowledge);
  std::vector<core::Option> proposed;
  for (const Candidate& candidate : proposal.candidates) proposed.push_back(candidate.strategy.buckets[0].option);
  for (const Candidate& baseline : baselines(knowledge.table, knowledge.fidelity)) {  // baselines gather already
    proposed.push_back(baseline.strategy.buckets[0].option);
  }
  for (const SparseScheme& scheme : sparse_schemes()) {
    const std::vector<core::Option> its = sparse_options(knowledge, {&scheme, 1});
    EXPECT_TRUE(std::ranges::any_of(its, [&](const core::Option& option) {
      return !option.codecs.empty() && std::ranges::find(proposed, option) != proposed.end();
    })) << scheme.name;
  }
}

TEST(SparseTensors, ASumThatIsDenseOfSparseGradientsMayBeBoth) {
  // Owners get half of the rows; or nearly all of them. Then a dense sum in pieces is used, whose passes hide behind
  // the link.
  for (const double of_one : {0.5, 0.999}) {
    const core::TensorInfo table = matrix("table", 1 << 16, 64, of_one, 1);
    EXPECT_TRUE(is_sparse(table));
    testing::TimelineJob tables{.knowledge = job(8, {table}), .truth = link(8, 1250, 5)};
    const core::Strategy chosen = chosen_by_auto(tables);
    EXPECT_TRUE(core::validate(chosen, tables.knowledge.table).ok());
    EXPECT_EQ(chosen.buckets.size() == 1, of_one == 0.5) << core::describe(chosen, tables.knowledge.table);
    EXPECT_EQ(!chosen.buckets[0].option.codecs.empty(), of_one == 0.5);
  }
  EXPECT_FALSE(is_sparse(matrix("table", 10, 4)));
}

}  // namespace
}  // namespace gradtune::policies
