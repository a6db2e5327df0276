// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
#include "policies/cost/program_cost.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <set>
#include <string>

#include "engine/core/rng.h"
#include "policies/search/label_search.h"
#include "policies/space/admission.h"
#include "tests/policies/brute_force.h"
#include "tests/policies/jobs.h"

namespace gradtune::policies {
namespace {

using core::Level;
using core::Option;
using core::Place;
using Kind = core::Step::Kind;

const core::CompressorSpec kBf16{"bf16"}, kTopk{"topk", 0.01};

// Round figures: a message takes 100 us, and a byte 0.01 us between all ranks and 0.001 us inside a node.
CostTable table_of(const core::Ranks& ranks) {
  CostTable table{.ranks = ranks, .scale_us = 1, .scale_element_us = 1e-4};
  for (const Kind kind : {Kind::all_reduce, Kind::reduce_scatter, Kind::all_gather, Kind::all_to_all, Kind::reduce,
                          Kind::broadcast, Kind::gather}) {
    table.collectives.push_back({kind, Level::flat, 100, 0.01});
    table.collectives.push_back({kind, Level::intra, 10, 0.001});
    table.collectives.push_back({kind, Level::inter, 100, 0.01});
  }
  for (const Place place : {Place::device, Place::host}) {
    for (const core::CompressorSpec& codec : {kBf16, kTopk}) {
      const double slower = place == Place::host ? 2 : 1;
      table.codecs.push_back({codec, place, 5 * slower, 1e-3 * slower, 3 * slower, 1e-4 * slower, 5e-4 * slower});
    }
  }
  return table;
}

Option option_of(const char* text) { return core::parse_option(text, testing::known_traits()).value(); }

Work work_of(const CostTable& table, const char* option, int64_t numel) {
  return program_work(table, option_of(option), numel, testing::known_traits()).value();
}

TEST(ProgramCost, IsTheSumOfItsStepsOnTheirLanes) {
  const CostTable table = table_of({.size = 4});
  // 2 (N - 1) messages and 2 (N - 1) / N of 4 bytes each.
  EXPECT_EQ(work_of(table, "all_reduce", 100'000), (Work{1 + 10, 0, 600 + 6'000, 0}));
  // 200,000 bytes to each of three others, and four payloads to decode.
  EXPECT_EQ(work_of(table, "bf16: encode@device all_gather decode@host", 100'000),
            (Work{105, 0, 300 + 6'000, 6 + 20 + 800}));
  // Shards of 25,008 elements of 2 bytes; the computation between the exchanges occupies the link.
  const double exchange = 300 + 3 * 50'016 * 0.01, decode = 3 + 25'008e-4 + 4 * 50'016 * 5e-4, encode = 5 + 25.008;
  const Work two_step =
      work_of(table, "bf16: encode@host all_to_all decode@device encode@device all_gather decode@device", 100'000);
  EXPECT_EQ(two_step[kBackward], 0);
  EXPECT_EQ(two_step[kHost], 10 + 200);
  EXPECT_DOUBLE_EQ(two_step[kLink], 2 * exchange + decode + encode);
  EXPECT_DOUBLE_EQ(two_step[kUnpack], 3 + 10 + 4 * 50'016 * 5e-4);
}

TEST(ProgramCost, LevelsHaveTheirOwnGroupsAndRates) {
  const CostTable table = table_of({.size = 8, .local_size = 4});
  const Work work = work_of(table, "reduce_scatter@intra all_reduce@inter all_gather@intra", 128'000);
  const double inside = 30 + 3 * 128'000 * 0.001;
  EXPECT_EQ(work[kLink], inside + (200 + 4 * 128'000 * 0.01) + inside) << "four ranks share a node's link";
  const Work of_root = work_of(table, "reduce@intra all_reduce@inter broadcast@intra", 128'000);
  EXPECT_DOUBLE_EQ(of_root[kLink], 2 * (30 + 512) + 200 + 512'000 * 0.01) << "or the root alone has it";
  EXPECT_FALSE(
      program_work(table_of({.size = 8}), option_of("reduce@intra broadcast@intra"), 10, testing::known_traits()));
}

TEST(ProgramCost, AnExchangeOfPairsLoadsANodesLinkForEachOfItsRanks) {
  const CostTable one = table_of({.size = 16, .local_size = 1}), eight = table_of({.size = 16, .local_size = 8});
  const char* const exchange = "bf16: encode@device all_to_all decode@device encode@device all_gather decode@device";
  constexpr int64_t kNumel = 1 << 20, kPart = 2 * kNumel / 16;
  // 15 parts leave a rank alone in its node, and 8 * 8 a node of eight; a ring crosses each link once for each part.
  EXPECT_NEAR(work_of(eight, exchange, kNumel)[kLink] - work_of(one, exchange, kNumel)[kLink], (64 - 15) * kPart * 0.01,
              1e-6);
  const char* const scatter = "reduce_scatter all_gather";
  EXPECT_NEAR(work_of(eight, scatter, kNumel)[kLink] - work_of(one, scatter, kNumel)[kLink],
              (64 - 15) * 2 * kPart * 0.01, 1e-6);
}

TEST(ProgramCost, AlongDimensionsRatesAreThoseOfAllRanksInSmallerGroups) {
  const Option option = core::recursive_doubling({"bf16"}, Place::device, 12);  // 3 x 2 x 2
  const auto costs = [&](const CostTable& table) {
    return program_op_costs(table, option, 16'000, testing::known_traits()).value();
  };
  CostTable table = table_of({.size = 12, .local_size = 6});
  const std::vector<OpCost> in_nodes = costs(table);
  const double bytes_us = 2 * 16'000 * 0.01;
  EXPECT_DOUBLE_EQ(in_nodes[1].us(), 2 * (100 + bytes_us));
  EXPECT_DOUBLE_EQ(in_nodes[4].us(), 100 + bytes_us);
  EXPECT_DOUBLE_EQ(in_nodes[7].us(), 100 + 6 * bytes_us) << "six ranks share a node's link";
  EXPECT_DOUBLE_EQ(costs(table_of({.size = 12}))[7].us(), 100 + bytes_us);
  table.collectives.push_back({Kind::all_gather, core::dimension(1), 7, 0});
  EXPECT_DOUBLE_EQ(costs(table)[4].us(), 7) << "what was seen counts";
  const auto refused = program_op_costs(table_of({.size = 9}), option, 16'000, testing::known_traits());
  EXPECT_THAT(refused.error().message,
              ::testing::HasSubstr("the cost table's ranks have no such levels or dimensions"));
}

TEST(ProgramCost, MessagesOfPairsTravelAtTheSameTime) {
  CostTable table{.ranks = {.size = 8}};
  for (const Kind kind : {Kind::all_reduce, Kind::reduce_scatter, Kind::all_gather}) {
    table.collectives.push_back({kind, Level::flat, 5000, 0, 4900});
  }
  const auto times = program_op_costs(table, option_of("reduce_scatter all_gather"), 8000, testing::known_traits());
  ASSERT_TRUE(times.ok());
  EXPECT_NEAR(times.value()[0].messages_us, 7 * 100, 1e-6);
  EXPECT_NEAR(times.value()[0].wait_us, 4900, 1e-6);
  EXPECT_NEAR(times.value()[1].messages_us, 7 * 100, 1e-6);
  EXPECT_NEAR(times.value()[1].wait_us, 7 * 4900, 1e-6);
}

TEST(ProgramCost, GathersAndWhatIsDecodedGrowWithTheRanks) {
  const char* const gather = "topk:0.01: encode@device all_gather decode@device";
  const Work two = work_of(table_of({.size = 2}), gather, 1 << 20),
             many = work_of(table_of({.size = 64}), gather, 1 << 20);
  EXPECT_EQ(many[kBackward], two[kBackward]);
  EXPECT_DOUBLE_EQ(many[kLink], 63 * two[kLink]);
  EXPECT_GT(many[kUnpack], two[kUnpack] + 31 * 0.01 * (1 << 20) * 8 * 5e-4);
}

TEST(ProgramCost, OptionsWithoutRatesAndThoseThatAreNeverBetterAreLeftOut) {
  CostTable table = table_of({.size = 4});
  const auto options_of = [&](const std::vector<Option>& options) {
    const auto model = make_program_cost(table, options, testing::known_traits(), 1 << 20).value();
    return std::vector<Option>(model->options().begin(), model->options().end());
  };
  const Option plain = core::plain_all_reduce(), gather = core::gather_payloads(kTopk, Place::device),
               host = core::gather_payloads(kTopk, Place::host);
  EXPECT_EQ(options_of({gather, host}), (std::vector<Option>{plain, gather, host}));
  const auto model = make_program_cost(table, {gather, host}, testing::known_traits(), 1 << 20).value();
  EXPECT_EQ(model->on_host(1), std::optional<size_t>(2));
  EXPECT_FALSE(model->on_host(0) || model->on_host(2));
  // As many bytes and messages as the all_reduce: never better.
  EXPECT_EQ(options_of({option_of("reduce_scatter all_gather")}), (std::vector<Option>{plain}));
  std::erase_if(table.codecs, [](const CodecRate& rate) { return rate.place == Place::host; });
  EXPECT_EQ(options_of({gather, host}), (std::vector<Option>{plain, gather}));
  table.collectives.clear();
  EXPECT_THAT(make_program_cost(table, {}, testing::known_traits(), 1).error().message,
              ::testing::HasSubstr("no rate of all_reduce"));
}

// The device's work after the first collective delays backward, which lanes do not model. So a slower host is no
// reason to leave it out.
TEST(ProgramCost, AnOptionWithoutLateWorkOnTheDeviceStays) {
  std::vector<Option> options;
  for (const char* const text :
       {"topk:0.01: encode@device all_gather decode@device", "topk:0.01: encode@device all_gather decode@host",
        "topk:0.01: encode@host all_gather decode@device", "topk:0.01: encode@host all_gather decode@host"}) {
    options.push_back(option_of(text));
  }
  const auto model = make_program_cost(table_of({.size = 4}), options, testing::known_traits(), 1 << 20).value();
  options.insert(options.begin(), core::plain_all_reduce());
  EXPECT_THAT(model->options(), ::testing::ElementsAreArray(options));
  for (const size_t option : {size_t{1}, size_t{2}, size_t{3}}) EXPECT_EQ(model->on_host(option), 4U);
}

// Without a matrix such a compressor sends fp32, and no plan would ever use it.
TEST(ProgramCost, CompressorsOfMatricesAreTabulatedForMatrices) {
  const core::TraitsTable all = testing::known_traits();
  std::vector<core::CompressorTraits> known(all.begin(), all.end());
  core::CompressorTraits narrow = known[0];
  narrow.name = "narrow";
  narrow.needs_matrices = true;
  narrow.payload_bytes = [](const core::CompressorSpec&, const core::Extent& of, int) {
    return of.matrices.empty() ? 4 * of.numel : 4 * (of.matrices[0].rows + of.matrices[0].columns);
  };
  known.push_back(narrow);
  CostTable table = table_of({.size = 4});
  table.codecs.push_back({{"narrow"}, Place::device, 5, 1e-4, 3, 1e-4, 5e-4});
  const Option option = core::parse_option("narrow: encode@device all_reduce decode@device", known).value();
  const auto model = make_program_cost(table, {option}, known, 1 << 20).value();
  ASSERT_EQ(model->options().size(), 2U);
  EXPECT_LT(model->work(1, 1 << 20)[kLink], 0.1 * model->work(0, 1 << 20)[kLink]);
}

TEST(ProgramCost, TabulatedWorkIsThatOfThePrograms) {
  const CostTable table = table_of({.size = 8, .local_size = 2});
  TreeJob job{.ranks = table.ranks,
              .host_threads = 1,
              .fidelity = core::Fidelity::lossy,
              .codecs = {kBf16, kTopk},
              .traits = testing::known_traits()};
  const auto model = make_program_cost(table, tree_options(job), job.traits, 1 << 24).value();
  EXPECT_GT(model->options().size(), 4u);
  core::Rng rng(1);
  for (size_t o = 0; o < model->options().size(); ++o) {
    Work before{};
    for (int64_t numel = 1; numel <= 1 << 24; numel += numel / 3 + 1) {
      const Work tabulated = model->work(o, numel);
      const Work exact = program_work(table, model->options()[o], numel, job.traits).value();
      for (size_t lane = 0; lane < kLanes; ++lane) {
        EXPECT_GE(tabulated[lane], before[lane]);
        // Payloads and shards are rounded up to whole elements.
        EXPECT_NEAR(tabulated[lane], exact[lane], 0.005 * exact[lane] + 20) << to_string(model->options()[o]) << numel;
      }
      before = tabulated;
    }
  }
}

// Rates of a made-up cluster: links, latencies and compressors that differ by orders of magnitude.
CostTable random_table(core::Rng& rng, const core::Ranks& ranks) {
  CostTable table = table_of(ranks);
  const auto factor = [&](double span) { return std::pow(span, 2 * rng.uniform() - 1); };
  const double latency = factor(5), rate = factor(10), codecs = factor(10);
  for (CollectiveRate& each : table.collectives) {
    each.message_us *= latency;
    each.byte_us *= rate;
  }
  for (CodecRate& each : table.codecs) {
    each.encode_element_us *= codecs;
    each.decode_element_us *= codecs;
    each.decode_byte_us *= codecs;
  }
  return table;
}

std::vector<Atom> random_atoms(core::Rng& rng, uint64_t most) {
  std::vector<Atom> atoms;
  double ready_us = 0;
  for (uint64_t a = 0, size = 1 + rng.below(most); a < size; ++a) {
    atoms.push_back({static_cast<int64_t>(1 + rng.below(2'000'000)), ready_us});
    ready_us += static_cast<double>(rng.below(3'000));
  }
  return atoms;
}

TEST(ProgramCost, TheJointSearchFindsTheBestOfAllPlansAndItChangesWithTheRanks) {
  core::Rng rng(5);
  int changed = 0;
  std::set<std::string> used;
  for (int job = 0; job < 30; ++job) {
    const std::vector<Atom> atoms = random_atoms(rng, 3);
    const uint64_t seed = rng.below(1 << 30);
    std::set<std::string> choices;
    for (const core::Ranks& ranks : {core::Ranks{2, 0}, core::Ranks{16, 4}, core::Ranks{64, 8}}) {
      core::Rng rates(seed);
      const CostTable table = random_table(rates, ranks);
      const TreeJob tree{.ranks = ranks,
                         .host_threads = 1,
                         .fidelity = core::Fidelity::lossy,
                         .codecs = {kTopk},
                         .traits = testing::known_traits()};
      const auto model = make_program_cost(table, tree_options(tree), tree.traits, 8'000'000).value();
      const SearchResult found = search_labels(*model, atoms);
      ASSERT_FALSE(found.plans.empty());
      EXPECT_LE(found.plans[0].end_us, 1.01 * testing::best_us(*model, atoms));
      std::string choice;
      for (const Message& message : found.plans[0].messages) {
        used.insert(to_string(model->options()[static_cast<size_t>(message.option)]));
        choice += std::to_string(message.last) + to_string(model->options()[static_cast<size_t>(message.option)]);
      }
      choices.insert(choice);
    }
    changed += choices.size() > 1;
  }
  EXPECT_GT(changed, 15);
  EXPECT_GT(used.size(), 5u) << "many programs are the best somewhere";
}

// A few programs of the tree, so that brute force can handle more tensors.
TEST(ProgramCost, TheJointSearchIsWithinAPercentForManyTensorsUnderAFewPrograms) {
  constexpr core::Ranks kRanks[] = {{2, 0}, {4, 2}, {8, 2}, {16, 4}, {32, 8}, {64, 8}};
  core::Rng rng(7);
  int changed = 0;
  for (int job = 0; job < 250; ++job) {
    const std::vector<Atom> atoms = random_atoms(rng, 8);
    const uint64_t seed = rng.below(1 << 30), first = rng.below(5);
    std::vector<std::vector<Message>> chosen;
    for (const core::Ranks& ranks : {kRanks[first], kRanks[5]}) {
      core::Rng rates(seed);
      const CostTable table = random_table(rates, ranks);
      const std::vector<Option> options = {core::gather_payloads(kTopk, Place::device),
                                           core::gather_payloads(kTopk, Place::host)};
      const auto model = make_program_cost(table, options, testing::known_traits(), 1 << 24).value();
      const SearchResult found = search_labels(*model, atoms);
      ASSERT_FALSE(found.plans.empty());
      EXPECT_LE(found.plans[0].end_us, 1.01 * testing::best_us(*model, atoms)) << "job " << job;
      chosen.push_back(found.plans[0].messages);
    }
    changed += chosen[0] != chosen[1];
  }
  EXPECT_GT(changed, 100) << "of 250";
}

}  // namespace
}  // namespace gradtune::policies
