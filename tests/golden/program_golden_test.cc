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

// The operation's work of that kind; if it is of another kind, one without any.
template <typename Work>
Work work_of(const Op& op) {
  const auto* const work = op.as<Work>();
  return work == nullptr ? Work{} : *work;
}

void add(Hasher& hasher, const Op& op) {
  const auto encode = work_of<Encode>(op);
  const auto collective = work_of<Collective>(op);
  const auto pack = work_of<Pack>(op);
  const Coding coding = coding_of(op) == nullptr ? Coding{} : *coding_of(op);
  for (const int64_t number : {static_cast<int64_t>(op.work.index()),
                               static_cast<int64_t>(op.place),
                               static_cast<int64_t>(op.step),
                               static_cast<int64_t>(encode.residual || work_of<Scale>(op).residual),
                               static_cast<int64_t>(encode.share),
                               static_cast<int64_t>(encode.bank.has_value()),
                               static_cast<int64_t>(coding.random.rank),
                               static_cast<int64_t>(coding.random.use),
                               static_cast<int64_t>(coding.round),
                               static_cast<int64_t>(coding.summed),
                               coding.round_memory,
                               encode.scratch.offset,
                               encode.scratch.bytes,
                               static_cast<int64_t>(collective.kind),
                               static_cast<int64_t>(collective.reduction),
                               static_cast<int64_t>(collective.level),
                               static_cast<int64_t>(collective.wire),
                               collective.count,
                               collective.payload_bytes,
                               static_cast<int64_t>(collective.root),
                               collective.input.offset,
                               op.is<Pack>() ? pack.to.offset : collective.output.offset,
                               collective.scratch.offset,
                               collective.scratch.bytes,
                               static_cast<int64_t>(collective.input.region == Address::Region::gradient)}) {
    hasher.add(static_cast<uint64_t>(number));
  }
  const compress::Compressor* const codec = op.is<Collective>() ? collective.codec : coding.codec;
  hasher.add(codec == nullptr ? "" : core::to_string(codec->spec()));
  std::vector<Payload> payloads = coding.payloads;
  for (const int64_t offset : pack.offsets) payloads.push_back({offset, pack.bytes, {}});
  for (const Payload& payload : payloads) {
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
