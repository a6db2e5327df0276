// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// Compiles every program of the decision tree and its extension with all memory on the host, and expects the same
// operations at the same offsets as before. A change is either intended, or a job on the CPU has begun to pay for
// something that only others need. If it is intended, replace the hashes below by those that the test prints.
#include <gtest/gtest.h>

#include "engine/core/hash.h"
#include "policies/space/decision_tree.h"
#include "tests/engine/exec/gradient_arenas.h"

namespace gradtune::exec {
namespace {

using core::DType;
using core::Hasher;

void add(Hasher& hasher, const Op& op) {
  for (const int64_t number : {static_cast<int64_t>(op.kind),
                               static_cast<int64_t>(op.place),
                               static_cast<int64_t>(op.step),
                               static_cast<int64_t>(op.residual),
                               static_cast<int64_t>(op.share),
                               static_cast<int64_t>(op.banks),
                               static_cast<int64_t>(op.random.rank),
                               static_cast<int64_t>(op.random.use),
                               static_cast<int64_t>(op.round),
                               static_cast<int64_t>(op.summed),
                               op.round_memory,
                               op.scratch,
                               op.scratch_bytes,
                               static_cast<int64_t>(op.collective),
                               static_cast<int64_t>(op.reduction),
                               static_cast<int64_t>(op.level),
                               static_cast<int64_t>(op.wire),
                               op.count,
                               op.payload_bytes,
                               static_cast<int64_t>(op.root),
                               op.input.offset,
                               op.output.offset,
                               op.comm_scratch,
                               op.comm_scratch_bytes,
                               static_cast<int64_t>(op.input.region == Address::Region::gradient)}) {
    hasher.add(static_cast<uint64_t>(number));
  }
  hasher.add(op.codec == nullptr ? "" : core::to_string(op.codec->spec()));
  for (const Payload& payload : op.payloads) {
    for (const int64_t number :
         {payload.offset, payload.bytes, payload.range.begin, payload.range.length, payload.state}) {
      hasher.add(static_cast<uint64_t>(number));
    }
  }
}

void add(Hasher& hasher, const Program& program) {
  for (const BucketProgram& bucket : program.buckets) {
    const int64_t staging = bucket.staged > 0 ? bucket.dense[core::Space::host].offset : -1;
    for (const int64_t number :
         {bucket.arena_begin, bucket.numel, staging, bucket.staged, int64_t{bucket.judged_ops}, bucket.sample}) {
      hasher.add(static_cast<uint64_t>(number));
    }
    for (const Op& op : bucket.ops) add(hasher, op);
  }
  for (const Issue& issue : program.order) hasher.add(static_cast<uint64_t>(issue.release));
  hasher.add(static_cast<uint64_t>(program.pool_bytes[core::Space::host]));
  hasher.add(static_cast<uint64_t>(program.state_bytes));
}

TEST(ProgramGolden, WhatRunsOnTheHostIsAsItWas) {
  constexpr core::Place kBoth[] = {core::Place::device, core::Place::host};
  std::vector<policies::Steps> programs;
  const auto append = [&](std::vector<policies::Steps> some) {
    for (policies::Steps& steps : some) programs.push_back(std::move(steps));
  };
  append(policies::flat_programs(kBoth));
  append(policies::hierarchical_programs(kBoth));
  append(policies::flat_summing_programs(kBoth));
  append(policies::hierarchical_summing_programs(kBoth));
  const core::GradientTable tables[] = {make_table({{37, DType::f32}, {205, DType::f32}, {91, DType::f32}}),
                                        make_table({{130, DType::bf16}, {77, DType::f16}, {61, DType::bf16}})};
  const CollectiveScratch scratch = [](core::Level, const comm::Collective& collective) { return collective.count; };
  std::vector<uint64_t> hashes;
  for (const core::GradientTable& table : tables) {
    for (const core::CompressorSpec& codec : {core::CompressorSpec{"bf16"}, core::CompressorSpec{"randk", 0.1}}) {
      Hasher hasher;
      for (const policies::Steps& steps : programs) {
        const std::string option = to_string(policies::with_codecs(steps, codec, codec));
        const core::Strategy strategy = make_strategy(table, option, 440, 2);
        for (const int rank : {0, 3}) {
          const auto program = compile(strategy, table, core::seat(rank, 4, 2), {.scratch = scratch});
          ASSERT_TRUE(program.ok()) << program.error().message;
          add(hasher, *program.value());
        }
      }
      hashes.push_back(hasher.value());
    }
  }
  EXPECT_EQ(hashes, (std::vector<uint64_t>{136780030471015036ULL, 2413545259621117560ULL, 17178761521024008423ULL,
                                           746569283533670829ULL}));
}

}  // namespace
}  // namespace gradtune::exec
