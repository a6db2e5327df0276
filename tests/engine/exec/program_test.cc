// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
#include "engine/exec/program.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "tests/engine/exec/gradient_arenas.h"

namespace gradtune::exec {
namespace {

using core::DType;
using core::Place;
using testing::HasSubstr;

std::string print(const Op& op) {
  const std::string place = "@" + std::string(core::to_string(op.place));
  const auto print_size = [](const auto& payloads) { return "x" + std::to_string(payloads.size()); };
  if (const auto* const copy = op.as<Copy>()) {
    return copy->to.region == Address::Region::host_pool ? "to-host" : "to-device";
  }
  if (const auto* const pack = op.as<Pack>()) return "pack" + print_size(pack->offsets);
  if (const auto* const encode = op.as<Encode>()) {
    return (encode->share ? "encode-again" : "encode") + place + print_size(encode->payloads);
  }
  if (const auto* const decode = op.as<Decode>()) return "decode" + place + print_size(decode->payloads);
  if (const auto* const collective = op.as<Collective>()) {
    constexpr const char* kTypes[] = {"u8", "f32", "f64", "bf16", "f16"};
    return std::string(core::to_string(collective->kind)) + " " + std::to_string(collective->count) +
           kTypes[static_cast<size_t>(collective->wire)] +
           (collective->level == core::Level::flat ? "" : "@" + std::string(core::to_string(collective->level)));
  }
  return std::string(name_of(op)) + place;
}

// "encode@host all-gather 100u8 decode@host": kind and place, collectives with count and type.
std::string print(const BucketProgram& bucket) {
  std::string text;
  for (const Op& op : bucket.ops) text += (text.empty() ? "" : " ") + print(op);
  return text;
}

std::unique_ptr<Program> compile_one(const std::string& option, DType dtype, int64_t numel, int rank, int size) {
  const core::GradientTable table = make_table({{numel, dtype}});
  return std::move(compile(make_strategy(table, option, 1 << 30, 1), table, {.rank = rank, .size = size})).value();
}

std::string compiled(const std::string& option, DType dtype, int rank = 0, int size = 3) {
  return print(compile_one(option, dtype, 100, rank, size)->buckets[0]);
}

const char* const kTwoStep = ": encode@device all_to_all decode@device encode@device all_gather decode@device";

TEST(Compile, GivesEachFamilyItsOperations) {
  EXPECT_EQ(compiled("all_reduce", DType::f32), "scale@device all_reduce 100f32");
  EXPECT_EQ(compiled("all_reduce", DType::bf16), "scale@device all_reduce 100bf16");
  EXPECT_EQ(compiled("all_reduce", DType::f16), "scale@device all_reduce 100f16");
  EXPECT_EQ(compiled("all_reduce", DType::f64), "scale@device all_reduce 100f64");

  EXPECT_EQ(compiled("bf16: encode@host all_reduce decode@host", DType::f32),
            "encode@hostx1 all_reduce 100bf16 decode@hostx1");
  EXPECT_EQ(compiled("none: encode@device all_reduce decode@device", DType::f16),
            "load@device encode@devicex1 all_reduce 100f32 decode@devicex1 store@device");

  // Three shards of 48, 48 and 4 elements: parts have the size of the largest.
  EXPECT_EQ(compiled(std::string("bf16") + kTwoStep, DType::f32),
            "encode@devicex3 all_to_all 96u8 decode@devicex3 encode-again@devicex1 all_gather 96u8 decode@devicex3");
  EXPECT_EQ(compiled("fp16: encode@host all_to_all decode@host encode@host all_gather decode@host", DType::bf16, 2),
            "load@host encode@hostx3 all_to_all 96u8 decode@hostx3 encode-again@hostx1 all_gather 96u8 decode@hostx3 "
            "store@host");

  // 100 of 2 bytes are 200, which is rounded up so that every payload is aligned.
  EXPECT_EQ(compiled("fp16: encode@device all_gather decode@device", DType::f32),
            "encode@devicex1 all_gather 208u8 decode@devicex3");
  // 10 of 100 elements: header, indices and values, each at a multiple of 16.
  EXPECT_EQ(compiled("topk:0.1: encode@device all_gather decode@device", DType::f32),
            "encode@devicex1 all_gather 96u8 decode@devicex3");
  // Two codecs, one for each direction.
  EXPECT_EQ(compiled("topk:0.1,bf16: encode@device all_to_all decode@device encode@device#1 all_gather decode@device#1",
                     DType::f32),
            "encode@devicex3 all_to_all 64u8 decode@devicex3 encode-again@devicex1 all_gather 96u8 decode@devicex3");
}

const char* const kTwoRounds = ": encode@device all_reduce decode@device encode@device.1 all_reduce decode@device.1";

TEST(Compile, GivesEachRoundItsEncodeCollectiveAndDecode) {
  // A matrix of 10 x 10.
  const std::string option = std::string("powersgd:1") + kTwoRounds;
  EXPECT_EQ(compiled(option, DType::f32),
            "encode@devicex1 all_reduce 10f32 decode@devicex1 encode@devicex1 all_reduce 10f32 decode@devicex1");
  const auto program = compile_one(option, DType::f32, 100, 1, 3);
  const std::vector<Op>& ops = program->buckets[0].ops;
  for (const size_t o : {0, 2, 3, 5}) {
    const Coding& coding = *coding_of(ops[o]);
    EXPECT_EQ(coding.round, o < 3 ? 0 : 1);
    EXPECT_EQ(coding.round_memory, coding_of(ops[0])->round_memory);
    EXPECT_EQ(coding.random.use, coding_of(ops[0])->random.use);
    EXPECT_EQ(coding.summed, 3);
    EXPECT_EQ(coding.payloads[0].state, 0);
    EXPECT_EQ(coding.payloads[0].matrices, (std::vector<core::Matrix>{{0, 10, 10}}));
  }
  const auto &first = std::get<Encode>(ops[0].work), &second = std::get<Encode>(ops[3].work);
  EXPECT_TRUE(first.residual && first.bank && second.residual && second.bank && !second.share);
  EXPECT_EQ(program->state_bytes, 64);  // 10 numbers, aligned
}

TEST(Compile, OneRankIsAGroupToo) {
  EXPECT_EQ(compiled("all_reduce", DType::f32, 0, 1), "scale@device all_reduce 100f32");
  EXPECT_EQ(compiled(std::string("none") + kTwoStep, DType::f32, 0, 1),
            "encode@devicex1 all_to_all 400u8 decode@devicex1 encode-again@devicex1 all_gather 400u8 decode@devicex1");
}

TEST(Compile, RefusesByNameWhatIsNotTheAverageOfAllRanks) {
  const struct {
    const char* option;
    const char* message;
  } refused[] = {
      {"topk:0.1: encode@device all_reduce decode@device", "step 1: topk payloads can not be summed"},
      {"bf16: encode@device all_gather", "does not end in the average"},
      {"bf16: encode@device all_reduce", "does not end in the average"},
      {"bf16: encode@device all_to_all decode@device", "does not end in the average"},
      {"bf16: encode@device decode@device", "step 1: decode before any exchange"},
      {"bf16: decode@device", "step 0: decode needs payloads"},
      {"bf16: encode@device encode@device all_reduce decode@device", "step 1: encode needs a gradient"},
      {"all_reduce all_reduce", "step 1: all_reduce needs what was not reduced over these ranks yet"},
      {"bf16: all_reduce encode@device all_gather decode@device", "step 1: encode after the whole bucket was reduced"},
      {"all_gather", "step 0: all_gather needs shards, or payloads"},
      {"all_to_all", "step 0: all_to_all needs payloads"},
      {"gather", "step 0: gather needs payloads"},
      {"broadcast", "step 0: broadcast needs what only one of these ranks has"},
      {"reduce", "does not end in the average"},
      {"reduce_scatter", "does not end in the average"},
      {"reduce_scatter broadcast", "step 1: broadcast needs what only one"},
      {"reduce all_gather", "step 1: all_gather needs shards"},
      {"bf16: encode@device all_gather all_gather decode@device", "step 2: all_gather needs payloads that were not"},
      {"bf16: encode@device all_to_all reduce decode@device", "step 2: reduce needs what was not reduced"},
      {"bf16: encode@device reduce decode@device", "step 1: only all_reduce adds payloads up"},
      {"bf16: reduce_scatter encode@device all_to_all decode@device", "step 1: all_to_all ahead needs what was not"},
      {"bf16,fp16: encode@device all_reduce decode@device#1", "step 2: decode names another codec"},
      {"powersgd:1: encode@device all_reduce decode@device", "round 1 of powersgd is what comes next"},
      {"powersgd:1: encode@device all_reduce decode@device all_reduce", "step 3: round 1 of powersgd is what comes"},
      {"powersgd:1: encode@device all_reduce decode@device.1", "step 2: round 0 of powersgd is what comes next"},
      {"powersgd:1: encode@device.1 all_reduce decode@device.1", "step 0: a codec's rounds begin with 0"},
      {"powersgd:1: encode@device all_gather decode@device", "step 1: only all_reduce takes payloads of powersgd"},
      {"powersgd:1,bf16: encode@device all_reduce decode@device encode@device#1", "step 3: round 1 of powersgd is"},
      {"all_reduce@intra all_reduce@inter", "levels need nodes that are known"},
      {"reduce_scatter@intra all_gather", "over all ranks, over levels and along dimensions do not mix"},
      {"bf16: encode@device all_gather@dim0 decode@device all_reduce", "and along dimensions do not mix"},
      {"bf16: encode@device all_gather@dim1 decode@device", "the mesh of 2 ranks has 1 dimensions"},
      {"bf16: encode@device all_reduce@dim0 decode@device", "along dimensions goes all_gather alone"},
      {"all_gather@dim0", "step 0: all_gather needs shards, or payloads"},
  };
  const core::GradientTable table = make_table({{100, DType::f32}});
  for (const auto& [option, message] : refused) {
    const auto program = compile(make_strategy(table, option, 1 << 20, 1), table, {.size = 2});
    ASSERT_FALSE(program.ok()) << option;
    EXPECT_EQ(program.error().code, core::Error::Code::invalid);
    EXPECT_THAT(program.error().message, HasSubstr(message));
    EXPECT_THAT(program.error().message, HasSubstr("program \"" + std::string(option) + "\""));
  }
  core::Strategy strategy = make_strategy(table, "bf16: encode@device all_reduce decode@device", 1 << 20, 1);
  strategy.buckets[0].option.steps[0].codec = 1;
  EXPECT_THAT(compile(strategy, table, {.size = 2}).error().message, HasSubstr("it names codec 1 of 1"));
  strategy.buckets[0].option.codecs[0].name = "gzip";
  EXPECT_THAT(compile(strategy, table, {.size = 2}).error().message, HasSubstr("compressor \"gzip\" is unknown"));
}

TEST(Compile, RefusesToCompressDoublePrecision) {
  const core::GradientTable table = make_table({{100, DType::f64}});
  std::vector<std::string> options = all_options(Place::device);
  std::erase(options, "all_reduce");
  options.emplace_back("reduce_scatter all_gather");
  for (const std::string& option : options) {
    const auto refused = compile(make_strategy(table, option, 1 << 30, 1), table, {.rank = 0, .size = 2});
    ASSERT_FALSE(refused.ok()) << option;
    EXPECT_THAT(refused.error().message, HasSubstr("double precision are summed as they are")) << option;
  }
}

TEST(Compile, RefusesMoreElementsThanAnOpaquePayloadCanCount) {
  const core::GradientTable table = make_table({{int64_t{1} << 32, DType::f32}});
  const auto compile_for = [&](const std::string& option) {
    return compile(make_strategy(table, option, table.bytes(), 1), table, {.size = 2});
  };
  const auto refused = compile_for("topk:0.1: encode@device all_gather decode@device");
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.error().code, core::Error::Code::invalid);
  EXPECT_THAT(refused.error().message, HasSubstr("step 0: payloads of topk count elements in 32 bits"));
  EXPECT_TRUE(compile_for(std::string("topk:0.1") + kTwoStep).ok()) << "a payload has half of them";
  EXPECT_TRUE(compile_for("bf16: encode@device all_reduce decode@device").ok());
}

std::string compiled_on_levels(const std::string& option, int rank) {
  const core::GradientTable table = make_table({{100, DType::f32}});
  return print(compile(make_strategy(table, option, 1 << 30, 1), table, core::seat(rank, 4, 2)).value()->buckets[0]);
}

TEST(Compile, OverLevelsEachRankHasItsPart) {
  // Shards of 64 elements in a node, of 32 between nodes: more than the bucket has, so that it is staged.
  EXPECT_EQ(compiled_on_levels("reduce_scatter@intra all_reduce@inter all_gather@intra", 0),
            "load@device scale@device reduce_scatter 64f32@intra all_reduce 64f32@inter all_gather 64f32@intra "
            "store@device");
  EXPECT_EQ(compiled_on_levels("reduce_scatter@intra all_reduce@inter all_gather@intra", 1),
            "load@device scale@device reduce_scatter 64f32@intra all_reduce 36f32@inter all_gather 64f32@intra "
            "store@device");
  // The roots of the first bucket are in rank 0 of node 0.
  const char* const rooted = "reduce@intra reduce@inter broadcast@inter broadcast@intra";
  EXPECT_EQ(compiled_on_levels(rooted, 0),
            "scale@device reduce 100f32@intra reduce 100f32@inter broadcast 100f32@inter broadcast 100f32@intra");
  EXPECT_EQ(compiled_on_levels(rooted, 1), "scale@device reduce 100f32@intra broadcast 100f32@intra");
  EXPECT_EQ(compiled_on_levels(rooted, 2), compiled_on_levels(rooted, 0));
  // Encoded once in four parts, which are reordered between the exchanges.
  EXPECT_EQ(compiled_on_levels(
                "bf16: encode@device all_to_all@intra all_to_all@inter decode@host encode@host all_gather@inter "
                "all_gather@intra decode@host",
                3),
            "encode@devicex4 all_to_all 128u8@intra packx4 all_to_all 128u8@inter decode@hostx4 encode-again@hostx1 "
            "all_gather 64u8@inter all_gather 128u8@intra decode@hostx4");
}

TEST(Compile, AlongDimensionsSumsOfEverMoreRanksAreExchanged) {
  const core::GradientTable table = make_table({{100, DType::f32}});
  const std::string option = to_string(core::recursive_doubling({"bf16"}, Place::device, 12));
  for (int rank = 0; rank < 12; ++rank) {
    const auto program = compile(make_strategy(table, option, 1 << 30, 1), table, {.rank = rank, .size = 12});
    const BucketProgram& bucket = program.value()->buckets[0];
    EXPECT_EQ(print(bucket),
              "encode@devicex1 all_gather 208u8@dim0 decode@devicex3 encode-again@devicex1 all_gather 208u8@dim1 "
              "decode@devicex2 encode-again@devicex1 all_gather 208u8@dim2 decode@devicex2");
    EXPECT_EQ(std::get<Collective>(bucket.ops[1].work).among, (core::Subgroup{3, 1}));
    EXPECT_EQ(std::get<Collective>(bucket.ops[4].work).among, (core::Subgroup{2, 3}));
    EXPECT_EQ(std::get<Collective>(bucket.ops[7].work).among, (core::Subgroup{2, 6}));
    // Ranks with the same sum draw alike.
    EXPECT_EQ(coding_of(bucket.ops[0])->random.rank, static_cast<uint32_t>(rank));
    EXPECT_EQ(coding_of(bucket.ops[3])->random.rank, static_cast<uint32_t>(rank / 3 * 3));
    EXPECT_EQ(coding_of(bucket.ops[6])->random.rank, static_cast<uint32_t>(rank / 6 * 6));
  }
  const std::string one = "bf16: encode@device all_gather@dim0 decode@device";
  const auto half_done = compile(make_strategy(table, one, 1 << 30, 1), table, {.rank = 0, .size = 4});
  EXPECT_THAT(half_done.error().message, HasSubstr("does not end in the average"));
}

TEST(Compile, WhatIsEncodedLaterThanFirstStillFeedsBackErrors) {
  // The residual joins the gradient before the first sum, and owners keep the error of what they encode.
  const core::GradientTable table = make_table({{128, DType::f32}});
  const auto ops = [&](const std::string& option, int rank) {
    return compile(make_strategy(table, option, 1 << 30, 1), table, core::seat(rank, 4, 2)).value()->buckets[0].ops;
  };
  const std::string sum =
      "topk:0.1: reduce_scatter@intra all_reduce@inter encode@device all_gather@intra decode@device";
  for (int rank = 0; rank < 4; ++rank) {
    const std::vector<Op> of_rank = ops(sum, rank);
    EXPECT_TRUE(std::get<Scale>(of_rank[0].work).residual);
    const auto& encode = std::get<Encode>(of_rank[3].work);
    EXPECT_TRUE(encode.share && !encode.residual);
    EXPECT_EQ(encode.bank.has_value(), rank < 2) << "both nodes hold the same sum: the first one keeps its error";
    EXPECT_EQ(encode.random.rank, static_cast<uint32_t>(rank % 2));
  }
  const std::vector<Op> mixed =
      ops("bf16,topk:0.1: encode@device all_to_all@intra decode@device encode@device#1 "
          "all_gather@inter decode@device#1 all_gather@intra",
          0);
  EXPECT_TRUE(std::get<Scale>(mixed[0].work).residual);
  const auto& encode = std::get<Encode>(mixed[1].work);
  EXPECT_TRUE(encode.share && !encode.bank);
}

TEST(Compile, ShardsCoverEveryElementOnceAlignedAndNoneIsLongerThanTheFirst) {
  for (const int size : {1, 2, 3, 5, 8}) {
    for (const int64_t n : {1, 15, 16, 17, 100, 4096, 65'537}) {
      const auto program = compile_one(std::string("none") + kTwoStep, DType::f32, n, 0, size);
      const std::vector<Payload>& payloads = coding_of(program->buckets[0].ops[0])->payloads;
      ASSERT_EQ(payloads.size(), static_cast<size_t>(size));
      int64_t end = 0;
      for (const Payload& payload : payloads) {
        EXPECT_EQ(payload.range.begin, end);
        EXPECT_LE(payload.range.length, payloads[0].range.length);
        EXPECT_TRUE(payload.range.length == 0 || payload.range.begin % 16 == 0);
        end += payload.range.length;
      }
      EXPECT_EQ(end, n);
    }
  }
}

// A piece of the pool, and its owner.
struct Piece {
  int64_t begin, end;
  size_t bucket, op;
};

// The exclusive memory of each bucket.
std::vector<Piece> pieces(const Program& program) {
  std::vector<Piece> all;
  for (size_t b = 0; b < program.buckets.size(); ++b) {
    const BucketProgram& bucket = program.buckets[b];
    const int64_t staging = bucket.dense[core::Space::host].offset;
    if (bucket.staged > 0) all.push_back({staging, staging + bucket.staged * 4, b, 0});
    for (size_t o = 0; o < bucket.ops.size(); ++o) {
      const auto* const encode = bucket.ops[o].as<Encode>();
      if (encode == nullptr) continue;
      for (const Payload& payload : encode->payloads) {
        all.push_back({payload.offset, payload.offset + payload.bytes, b, o});
      }
      if (encode->round > 0) continue;  // memory between them lasts for all rounds
      const core::Extent extent{encode->payloads[0].range.length, encode->payloads[0].matrices};
      all.push_back({encode->round_memory, encode->round_memory + encode->codec->round_bytes(extent), b, o});
    }
  }
  std::erase_if(all, [](const Piece& piece) { return piece.begin == piece.end; });
  std::sort(all.begin(), all.end(), [](const Piece& x, const Piece& y) { return x.begin < y.begin; });
  return all;
}

// Other memory that the collective at that place in the order writes: the received data, unless it is the bucket's
// own, and the communicator's scratch.
Piece held(const Program& program, size_t position, int size) {
  const Issue& issue = program.order[position];
  const auto& what =
      std::get<Collective>(program.buckets[static_cast<size_t>(issue.bucket)].ops[static_cast<size_t>(issue.op)].work);
  Piece piece{0, 0, static_cast<size_t>(issue.bucket), static_cast<size_t>(issue.op)};
  if (issue.release > issue.op) {
    const bool is_exchange = what.kind == comm::Collective::Kind::all_to_all;
    piece = {what.output.offset, what.output.offset + what.count * size, piece.bucket, piece.op};
    EXPECT_TRUE(is_exchange || what.kind == comm::Collective::Kind::all_gather);
  }
  if (what.scratch.bytes == 0) return piece;
  EXPECT_TRUE(piece.begin == piece.end || piece.end <= what.scratch.offset);
  if (piece.begin == piece.end) piece.begin = what.scratch.offset;
  piece.end = what.scratch.offset + what.scratch.bytes;
  return piece;
}

bool overlap(const Piece& a, const Piece& b) {
  return a.begin < a.end && b.begin < b.end && a.begin < b.end && b.begin < a.end;
}

// As for Gloo.
int64_t scratch_of_reduce_scatter(core::Level, const comm::Collective& collective) {
  return collective.kind == comm::Collective::Kind::reduce_scatter ? collective.count * 12 : 0;
}

class Layout : public testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(Sizes, Layout, testing::Values(1, 2, 3, 5));

TEST_P(Layout, PayloadsAreAlignedApartAndInsideThePool) {
  const core::GradientTable table = mixed_table();
  for (const std::string& option : all_options(Place::device)) {
    for (int rank = 0; rank < GetParam(); ++rank) {
      const auto program = compile(make_strategy(table, option, 5'000, 1), table, {.rank = rank, .size = GetParam()});
      const std::vector<Piece> all = pieces(*program.value());
      for (size_t i = 0; i < all.size(); ++i) {
        EXPECT_EQ(all[i].begin % 16, 0) << option;
        EXPECT_LE(all[i].end, program.value()->pool_bytes[core::Space::host]) << option;
        EXPECT_TRUE(i == 0 || all[i - 1].end <= all[i].begin) << option;
      }
      for (const BucketProgram& bucket : program.value()->buckets) {
        for (const Op& op : bucket.ops) {
          if (const auto* const pack = op.as<Pack>()) {
            for (const int64_t offset : pack->offsets) EXPECT_EQ(offset % 16, 0) << option;
          }
          if (coding_of(op) == nullptr) continue;
          for (const Payload& payload : coding_of(op)->payloads) EXPECT_EQ(payload.offset % 16, 0) << option;
        }
      }
    }
  }
}

// Scratch is one region for each place, outside of every bucket's own memory. Any collectives that may be held at
// the same time do not overlap, nor do they overlap anything else.
TEST_P(Layout, BucketsShareOnlyWhatTheyNeedAtDifferentTimes) {
  const core::GradientTable table = mixed_table();
  std::vector<std::string> options = all_options(Place::device);
  options.push_back("reduce_scatter all_gather");
  for (const std::string& option : options) {
    for (const int in_flight : {1, 3}) {
      const auto compiled = compile(make_strategy(table, option, 1'000, in_flight), table, {.size = GetParam()},
                                    {.scratch = scratch_of_reduce_scatter});
      const Program& program = *compiled.value();
      std::vector<Piece> own = pieces(program);
      Piece scratch[2] = {{INT64_MAX, 0, 0, 0}, {INT64_MAX, 0, 0, 0}};
      for (const BucketProgram& bucket : program.buckets) {
        for (const Op& op : bucket.ops) {
          const auto* const encode = op.as<Encode>();
          if (encode == nullptr) continue;
          Piece& of_place = scratch[static_cast<size_t>(op.place)];
          of_place.begin = std::min(of_place.begin, encode->scratch.offset);
          of_place.end = std::max(of_place.end, encode->scratch.offset + encode->scratch.bytes);
        }
      }
      for (const Piece& of_place : scratch) own.push_back(of_place);
      EXPECT_FALSE(overlap(scratch[0], scratch[1]));
      for (size_t i = 0; i < program.order.size(); ++i) {
        const Piece mine = held(program, i, GetParam());
        EXPECT_LE(mine.end, program.pool_bytes[core::Space::host]);
        for (const Piece& other : own) EXPECT_FALSE(overlap(mine, other)) << option;
        const size_t last = std::min(program.order.size(), i + static_cast<size_t>(core::most_held(program.strategy)));
        for (size_t j = i + 1; j < last; ++j) EXPECT_FALSE(overlap(mine, held(program, j, GetParam()))) << option;
      }
    }
  }
}

// A gather brings the payloads of all ranks. The payloads of many buckets do not all fit at once.
TEST(Compile, TheMemoryOfManyBucketsIsNotThatOfAllRanksPayloads) {
  constexpr int kRanks = 8, kBuckets = 64;
  constexpr int64_t kElements = 1'000, kPayload = kElements * 4;
  const core::GradientTable table =
      make_table(std::vector<std::pair<int64_t, DType>>(kBuckets, {kElements, DType::f32}));
  const auto compiled = compile(make_strategy(table, "none: encode@device all_gather decode@device", kPayload, 2),
                                table, {.size = kRanks});
  const Program& program = *compiled.value();
  ASSERT_EQ(program.buckets.size(), size_t{kBuckets});
  const int64_t payload = aligned(core::aligned_payload(kPayload));
  EXPECT_EQ(program.pool_bytes[core::Space::host],
            kBuckets * payload + core::most_held(program.strategy) * aligned(kRanks * core::aligned_payload(kPayload)));
}

TEST_P(Layout, WhatAGatherBringsIsWhatIsDecoded) {
  for (const std::string& option : all_options(Place::device)) {
    for (int rank = 0; rank < GetParam(); ++rank) {
      const auto program = compile_one(option, DType::f32, 1'001, rank, GetParam());
      const std::vector<Op>& ops = program->buckets[0].ops;
      for (size_t o = 0; o + 1 < ops.size(); ++o) {
        const auto* const gather = ops[o].as<Collective>();
        if (gather == nullptr || gather->kind != comm::Collective::Kind::all_gather) continue;
        EXPECT_EQ(coding_of(ops[o - 1])->payloads[0].offset, gather->input.offset) << option;
        const std::vector<Payload>& payloads = coding_of(ops[o + 1])->payloads;
        ASSERT_EQ(payloads.size(), static_cast<size_t>(GetParam()));
        for (int r = 0; r < GetParam(); ++r) {
          const Payload& payload = payloads[static_cast<size_t>(r)];
          EXPECT_EQ(payload.offset, gather->output.offset + r * gather->count) << option;
          EXPECT_LE(payload.bytes, gather->count) << option;
        }
      }
    }
  }
}

TEST(Compile, PutsBucketsWhereTheirElementsLieInTheArenaOfTheirType) {
  const core::GradientTable table = mixed_table();
  const auto program = compile(make_strategy(table, "all_reduce", 3'000, 1), table, {.size = 2});
  const core::ArenaLayout layout = core::lay_arenas(table);
  std::vector<int64_t> end(layout.arenas.size());
  for (const BucketProgram& bucket : program.value()->buckets) {
    int64_t& next = end[static_cast<size_t>(bucket.arena)];
    EXPECT_EQ(bucket.dtype, layout.arenas[static_cast<size_t>(bucket.arena)].dtype);
    EXPECT_EQ(bucket.arena_begin, next);
    next += bucket.numel;
  }
  for (size_t arena = 0; arena < end.size(); ++arena) EXPECT_EQ(end[arena], layout.arenas[arena].numel);
}

}  // namespace
}  // namespace gradtune::exec
