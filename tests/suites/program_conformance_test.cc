// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// Runs every program of the decision tree, and of its extension, on real executors with ranks in nodes. It checks
// the average within the compressor's promise, that nothing is lost (I2), the same bits on all ranks, and several
// buckets in flight.
#include <gtest/gtest.h>

#include "policies/cost/inserted_steps.h"
#include "policies/cost/op_sizes.h"
#include "policies/space/decision_tree.h"
#include "tests/engine/exec/checked_step.h"
#include "tests/engine/exec/host_device.h"

namespace gradtune::exec {
namespace {

using core::DType;
using core::Place;
using policies::Steps;

constexpr Place kBoth[] = {Place::device, Place::host};
constexpr std::span<const Place> kDevice{kBoth, 1};

struct Cluster {
  int size, local_size;
};

std::vector<Steps> tree(std::span<const Place> places) {
  std::vector<Steps> all = policies::flat_programs(places);
  for (Steps& steps : policies::hierarchical_programs(places)) all.push_back(std::move(steps));
  return all;
}

std::vector<Steps> extension(std::span<const Place> places) {
  std::vector<Steps> all = policies::flat_summing_programs(places);
  for (Steps& steps : policies::hierarchical_summing_programs(places)) all.push_back(std::move(steps));
  return all;
}

// Several buckets, so that roots differ, of sizes that nothing divides.
const core::GradientTable kTable = make_table({{37, DType::f32}, {205, DType::f32}, {91, DType::f32}});
constexpr int64_t kBucketBytes = 440;

void run_all(const Cluster& cluster, const std::vector<Steps>& programs, const core::CompressorSpec& inside,
             const core::CompressorSpec& between, const core::GradientTable& table = kTable, int steps = 2) {
  Fleet fleet(make_groups(cluster.size, cluster.local_size), table, kWithHost);
  core::Rng rng(23);
  int number = 0;
  for (const Steps& each : programs) {
    const std::string option = to_string(policies::with_codecs(each, inside, between));
    fleet.run(make_strategy(table, option, kBucketBytes, 1 + number++ % 4));
    for (int i = 0; i < steps; ++i) checked_step(fleet, table, option, rng);
    if (testing::Test::HasFailure()) return;  // one is enough to read
  }
}

const core::CompressorSpec kNone{"none"}, kTopk{"topk", 0.1}, kBf16{"bf16"};

TEST(ProgramConformance, EveryProgramOfTheTreeIsTheAverageOnTwoNodesOfTwo) {
  run_all({4, 2}, tree(kBoth), kNone, kNone, kTable, 1);
}

TEST(ProgramConformance, EveryProgramOfTheTreeLosesNothingOnTwoNodesOfTwo) {
  run_all({4, 2}, tree(kBoth), kTopk, kTopk);
}

TEST(ProgramConformance, EveryProgramOfTheExtensionIsTheAverageOnTwoNodesOfTwo) {
  run_all({4, 2}, extension(kBoth), kBf16, kBf16);
}

// Bytes behind the end of a payload do not arrive, from any source and in any next step.
TEST(ProgramConformance, PayloadsNeedNotBeFullInAnyProgram) {
  run_all({4, 2}, tree(kBoth), {"packed"}, {"packed"}, kTable, 1);
  run_all({4, 2}, tree(kDevice), {"packed"}, kTopk);
  run_all({6, 3}, tree(kDevice), kNone, {"bf16packed"}, kTable, 1);
}

TEST(ProgramConformance, AnotherCodecInsideThanBetween) {
  run_all({4, 2}, tree(kDevice), kNone, kTopk);
  run_all({4, 2}, tree(kDevice), kTopk, kNone);
  run_all({4, 2}, tree(kDevice), kBf16, kNone);
}

TEST(ProgramConformance, NodesAndTheirRanksNeedNotBeAsMany) {
  for (const Cluster& cluster : {Cluster{6, 2}, Cluster{6, 3}, Cluster{3, 1}, Cluster{3, 3}}) {
    run_all(cluster, tree(kDevice), kNone, kNone, kTable, 1);
    run_all(cluster, tree(kDevice), kTopk, kTopk, kTable, 1);
  }
}

TEST(ProgramConformance, SixteenBitGradients) {
  const core::GradientTable table = make_table({{130, DType::bf16}, {77, DType::f16}, {61, DType::bf16}});
  run_all({4, 2}, tree(kDevice), kNone, kNone, table);
  run_all({4, 2}, tree(kDevice), kTopk, kTopk, table);
}

// Ranks that encode the same sum must draw alike, or their gradients diverge.
TEST(ProgramConformance, RandomCompressorsLeaveAllRanksWithTheSameBits) {
  run_all({4, 2}, tree(kDevice), {"qsgd", 4}, {"qsgd", 4});
}

TEST(ProgramConformance, WhatAllRanksDrawAlikeAddsUpInEveryProgram) {
  run_all({4, 2}, tree(kDevice), {"randk", 0.1}, {"randk", 0.1});
  run_all({4, 2}, extension(kDevice), {"randk", 0.1}, {"randk", 0.1});
}

TEST(ProgramConformance, WhatIsCarriedFromStepToStepLosesNothingInAnyProgram) {
  run_all({4, 2}, tree(kDevice), {"threshk", 0.1}, {"threshk", 0.1}, kTable, 4);
}

// The compressor's own test covers the loss of momentum: gradients and averages do not show it.
TEST(ProgramConformance, MomentumLeavesAllRanksWithTheSameBits) {
  run_all({4, 2}, tree(kDevice), {"dgc", 0.1}, {"dgc", 0.1}, kTable, 4);
}

TEST(ProgramConformance, SumsAlongDimensionsAreTheAverageAndLoseNothing) {
  for (const int size : {4, 6, 8, 12}) {
    std::vector<Steps> programs;
    for (const Place place : kBoth) programs.push_back(core::recursive_doubling({}, place, size).steps);
    for (const core::CompressorSpec& codec :
         std::vector<core::CompressorSpec>{kNone, kBf16, kTopk, {"packed"}, {"qsgd", 4}, {"randk", 0.1}}) {
      run_all({size, 0}, programs, codec, codec);
    }
  }
}

// --- several rounds --------------------------------------------------------------------------------------------------

const char* const kRounds[] = {
    "powersgd:1: encode@device all_reduce decode@device encode@device.1 all_reduce decode@device.1",
    "powersgd:2: encode@host all_reduce decode@host encode@host.1 all_reduce decode@host.1",
    "powersgd:1: encode@device all_reduce decode@host encode@host.1 all_reduce decode@device.1",
    "thc:30: encode@device all_reduce decode@device encode@device.1 all_reduce decode@device.1",
    "thc:63: encode@host all_reduce decode@device encode@host.1 all_reduce decode@host.1",
};
const char* const kRoundsOnLevels[] = {
    "powersgd:1: reduce_scatter@intra encode@device all_reduce@inter decode@device encode@device.1 all_reduce@inter "
    "decode@device.1 all_gather@intra",
    "powersgd:1: all_reduce@intra encode@device all_reduce@inter decode@device encode@device.1 all_reduce@inter "
    "decode@device.1",
    "thc:100: reduce_scatter@intra encode@device all_reduce@inter decode@device encode@device.1 all_reduce@inter "
    "decode@device.1 all_gather@intra",
    "powersgd:1: reduce@intra encode@host all_reduce@inter decode@host encode@host.1 all_reduce@inter decode@host.1 "
    "broadcast@intra",
};

TEST(ProgramConformance, SeveralRoundsLoseNothingAndLeaveAllRanksWithTheSameBits) {
  const core::GradientTable tables[] = {kTable, make_table({{900, DType::f32}, {31, DType::f32}, {400, DType::f32}}),
                                        make_table({{900, DType::bf16}, {400, DType::f16}, {256, DType::f32}})};
  for (const core::GradientTable& table : tables) {
    Fleet fleet(make_groups(4, 2), table, kWithHost);
    core::Rng rng(29);
    const auto run = [&](const char* option, int64_t bucket_bytes) {
      fleet.run(make_strategy(table, option, bucket_bytes, 3));
      for (int i = 0; i < 4; ++i) checked_step(fleet, table, option, rng);
    };
    for (const int64_t bucket_bytes : {440, 100'000}) {  // some sizes cut matrices, others do not
      for (const char* option : kRounds) run(option, bucket_bytes);
      for (const char* option : kRoundsOnLevels) run(option, bucket_bytes);
    }
  }
}

// --- what planners believe of programs -------------------------------------------------------------------------------

// The work of the busiest rank at each step, as compiled.
std::vector<policies::OpSize> compiled_sizes(const core::Option& option, int64_t numel, const Cluster& cluster) {
  const core::GradientTable table = make_table({{numel, DType::f32}});
  std::vector<policies::OpSize> sizes(option.steps.size());
  for (int rank = 0; rank < cluster.size; ++rank) {
    const auto program = compile(make_strategy(table, to_string(option), 1 << 30, 1), table,
                                 core::seat(rank, cluster.size, cluster.local_size));
    for (const Op& op : program.value()->buckets[0].ops) {
      if (op.step < 0) continue;
      policies::OpSize size{.elements = 0, .payloads = 1, .bytes = 0};
      if (const auto* const collective = op.as<Collective>()) {
        size.bytes = collective->count * comm::bytes_per_element(collective->wire);
      } else {
        const std::vector<Payload>& payloads = coding_of(op)->payloads;
        int64_t of_first = 0;
        for (size_t p = 0; p < payloads.size(); ++p) {
          const Payload& payload = payloads[p];
          size.bytes += payload.bytes;
          if (p == 0 || payload.range.begin != payloads[p - 1].range.begin) size.elements += payload.range.length;
          of_first += payload.range.begin == payloads[0].range.begin && payload.range.length > 0 ? 1 : 0;
        }
        if (op.is<Decode>()) size.payloads = std::max<int64_t>(of_first, 1);
      }
      policies::OpSize& busiest = sizes[static_cast<size_t>(op.step)];
      if (size.elements >= busiest.elements && size.bytes >= busiest.bytes) busiest = size;
    }
  }
  return sizes;
}

TEST(ProgramConformance, PlannersKnowTheSizesOfRounds) {
  for (const int64_t numel : {900, 901, 1000, 3600}) {
    const core::GradientTable table = make_table({{numel, DType::f32}});
    const std::vector<core::Matrix> matrices = core::matrices_of({.slices = {{0, 0, numel}}, .option = {}}, table);
    for (const double rank : {1, 4, 64}) {
      const core::Option option = core::encoded_all_reduce({"powersgd", rank}, Place::device, 2);
      const auto believed = policies::op_sizes(option, {numel, matrices}, {4, 2}, compress::known_traits());
      const auto compiled = compiled_sizes(option, numel, {4, 2});
      for (size_t i = 0; i < option.steps.size(); ++i) {
        EXPECT_EQ(believed[i].bytes, compiled[i].bytes) << numel << ", rank " << rank << ", step " << i;
        EXPECT_EQ(believed[i].payloads, compiled[i].payloads) << numel << ", rank " << rank << ", step " << i;
        const bool is_first_decode = i == 2;  // it makes no gradient
        EXPECT_EQ(believed[i].elements, is_first_decode ? 0 : compiled[i].elements) << numel << ", step " << i;
      }
    }
  }
}

TEST(ProgramConformance, PlannersKnowTheSizesOfWhatRuns) {
  for (const Cluster& cluster : {Cluster{4, 2}, Cluster{6, 3}}) {
    std::vector<Steps> programs = tree(kDevice);
    for (Steps& steps : extension(kDevice)) programs.push_back(std::move(steps));
    programs.push_back(core::recursive_doubling({}, Place::device, cluster.size).steps);
    for (const Steps& steps : programs) {
      for (const int64_t numel : {192 * 7, 1000}) {
        const core::Option option = policies::with_codecs(steps, kBf16, kBf16);
        const auto believed =
            policies::op_sizes(option, numel, {cluster.size, cluster.local_size}, compress::known_traits());
        const auto compiled = compiled_sizes(option, numel, cluster);
        for (size_t i = 0; i < steps.size(); ++i) {
          const std::string where = to_string(option) + ", step " + std::to_string(i);
          EXPECT_EQ(believed[i].elements, compiled[i].elements) << where;
          EXPECT_EQ(believed[i].payloads, compiled[i].payloads) << where;
          if (core::is_collective(steps[i].kind)) {
            EXPECT_EQ(believed[i].bytes, compiled[i].bytes) << where;
          } else {  // they are aligned, and the last shards may be shorter
            EXPECT_GE(believed[i].bytes, compiled[i].bytes) << where;
            EXPECT_LE(believed[i].bytes, compiled[i].bytes + (numel % 192 == 0 ? 0 : 32 * 16 * 6)) << where;
          }
          if (HasFailure()) return;
        }
      }
    }
  }
}

// --- copies of gradients on a device ---------------------------------------------------------------------------------

std::vector<policies::Copy> compiled_copies(const BucketProgram& bucket, size_t steps) {
  std::vector<policies::Copy> copies;
  for (size_t i = 0; i < bucket.ops.size(); ++i) {
    const auto* const copy = bucket.ops[i].as<Copy>();
    if (copy == nullptr) continue;
    const auto next = std::find_if(bucket.ops.begin() + static_cast<std::ptrdiff_t>(i), bucket.ops.end(),
                                   [](const Op& after) { return after.step >= 0; });
    copies.push_back({next == bucket.ops.end() ? steps : static_cast<size_t>(next->step),
                      space_of(copy->to, bucket) == core::Space::host, copy->bytes});
  }
  return copies;
}

// Checks the first rank, which is the root of the first bucket.
void expect_copies(const std::vector<Steps>& programs, const Cluster& cluster, int64_t numel, DType dtype) {
  HostDevice with_kernels, without({.has_kernels = false});
  for (const policies::OnDevice& on_device :
       {policies::OnDevice{true, false, true}, policies::OnDevice{true, true, true},
        policies::OnDevice{true, false, false}, policies::OnDevice{true, true, false}}) {
    if (numel % 192 != 0 && !on_device.kernels) continue;  // the host would make shards of equal length
    const Platform platform{
        .collectives_in = [&](core::Level) { return on_device.collectives ? core::Space::cuda : core::Space::host; },
        .device = on_device.kernels ? &with_kernels : &without};
    const core::GradientTable table = exec::on_device(make_table({{numel, dtype}}));
    for (const Steps& steps : programs) {
      const core::Option option = policies::with_codecs(steps, kBf16, kBf16);
      const std::string where = to_string(option) + ", collectives " + std::to_string(on_device.collectives) +
                                ", kernels " + std::to_string(on_device.kernels) + ", " + std::to_string(numel);
      const auto program = compile(make_strategy(table, to_string(option), 1 << 30, 1), table,
                                   core::seat(0, cluster.size, cluster.local_size), platform);
      ASSERT_TRUE(program.ok()) << where << ": " << program.error().message;
      const auto sizes =
          policies::op_sizes(option, numel, {cluster.size, cluster.local_size}, compress::known_traits(), dtype);
      auto believed = policies::copies(option, numel, dtype, sizes, on_device);
      auto compiled = compiled_copies(program.value()->buckets[0], steps.size());
      if (numel % 192 != 0) {  // the padding of shards is copied, too
        for (auto* copies : {&believed, &compiled}) {
          for (policies::Copy& copy : *copies) copy.bytes = 0;
        }
      }
      ASSERT_EQ(believed, compiled) << where;
    }
  }
}

TEST(ProgramConformance, PlannersKnowWhatIsCopiedBetweenADeviceAndTheHost) {
  for (const DType dtype : {DType::f32, DType::bf16}) {
    expect_copies(tree(kBoth), {4, 2}, 192 * 7, dtype);
    expect_copies(tree(kDevice), {6, 3}, 192 * 7, dtype);
    expect_copies(extension(kBoth), {6, 3}, 192 * 7, dtype);
    expect_copies(tree(kDevice), {4, 2}, 1000, dtype);
  }
}

}  // namespace
}  // namespace gradtune::exec
