// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// A strategy made ready to run on one rank: every bucket's option turned into a list of operations on concrete ranges
// and buffers. Compiling is the one place that gives programs their meaning; it refuses, by name, a program that does
// not end in the average of all ranks.
//
// Buffers are offsets into one pool, so that strategies that take turns share memory. So do buckets, where they need
// memory at different times:
//   scratch of codecs       one operation at a time runs at a place, so all that run there share one region
//   what collectives bring  is needed until it is decoded. The scheduler lets core::most_held(strategy) collectives in
//                           a row have something that is not decoded yet. Only so many need room at once.
// Payloads and staging have room of their own, since every bucket may have been encoded before the first one is sent.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "engine/comm/communicator.h"
#include "engine/compress/compressor.h"
#include "engine/core/round_up.h"
#include "engine/core/strategy.h"

namespace gradtune::exec {

// What is allocated in the pool, and in the memory of state, begins at a cache line.
constexpr int64_t aligned(int64_t bytes) { return core::round_up(bytes, 64); }

// Elements [begin, begin + length) of a bucket.
struct Range {
  int64_t begin = 0;
  int64_t length = 0;
};

// Where a payload lies in the pool, and the elements that it stands for.
struct Payload {
  int64_t offset = 0;  // bytes
  int64_t bytes = 0;
  Range range;
  std::vector<core::Matrix> matrices = {};  // in the range, for codecs that need them
  int64_t state = -1;                       // offset of the codec's state of the range; -1: none
};

struct Op {
  enum class Kind : uint8_t {
    load,        // gradient -> fp32 staging
    scale,       // what is at hand becomes a share of the average: times 1 / N
    encode,      // each of `payloads` from its range
    pack,        // moves payloads to `output`, in the order of `payloads`
    collective,  // `collective` on `input` and `output`
    decode,      // ranges of the gradient from `payloads`; payloads of one range are added up
    store,       // fp32 staging -> gradient
  } kind;
  core::Place place = core::Place::device;
  int32_t step = -1;  // position in the option's program; -1 for what compiling inserted

  const compress::Compressor* codec = nullptr;
  std::vector<Payload> payloads = {};
  bool residual = false;         // scale, encode: adds the residual, and writes the next one anew
  bool share = false;            // encode: the gradient is a share of the average already
  bool banks = false;            // encode: this rank keeps the error. Where ranks encode the same sum, one of them does
  compress::Random random = {};  // encode, decode: rank (that of the one who keeps the error) and use
  int round = 0;                 // encode, decode
  int summed = 1;                // encode, decode: of how many payloads collectives make, made, each of these
  int64_t round_memory = 0;      // offset of what the codec's rounds leave each other, in the pool
  int64_t scratch = 0;           // offset of the codec's scratch memory in the pool
  int64_t scratch_bytes = 0;

  comm::Collective::Kind collective{};
  core::Reduction reduction = core::Reduction::sum;
  core::Level level = core::Level::flat;
  comm::WireType wire = comm::WireType::u8;
  int64_t count = 0;
  int64_t payload_bytes = 0;  // of payloads that need not be full: what `count` is made of, and `codec` is theirs
  int root = 0;
  int64_t input = 0, output = 0;  // offsets in the pool, bytes
  int64_t comm_scratch = 0;       // the same, of what the communicator needs for itself
  int64_t comm_scratch_bytes = 0;
  bool on_gradient = false;  // ... or in the bucket's gradient
};

struct BucketProgram {
  core::DType dtype = core::DType::f32;
  int32_t arena = 0;                            // that holds its elements (core/arenas.h)
  const compress::Compressor* plain = nullptr;  // whose payloads are numbers of that dtype
  int64_t arena_begin = 0;                      // first element there
  int64_t numel = 0;
  int64_t staging = -1;  // offset of fp32 staging in the pool; -1: what is at hand is the gradient itself
  int64_t staged = 0;    // elements of it: the bucket's, and zeros up to a whole number of shards
  bool keeps_residual = false;
  bool carries_nonfinite = true;  // so do all of its codecs, and it keeps no residual
  std::vector<Op> ops;            // of this rank: collectives that others hold among themselves are left out
  int32_t first_op = 0;           // number of the first of them among those of all buckets
  core::Due due = core::Due::backward;
  // How many operations have to be done before the step's control word may say whether all is finite: all up to the
  // last that encodes or scales; of a bucket that is due later, up to the first, as what it encodes again can not
  // overflow.
  int32_t judged_ops = 0;
  int32_t tensors = 0;      // slices of this many tensors have to be ready
  int32_t sampled_op = -1;  // whose error is looked at (loss_sample.h); -1: none loses anything
  int64_t sample = -1;      // offset of what that needs in the pool
};

// A slice of a tensor: in which bucket, and where in the tensor and in the arena. Elements.
struct Piece {
  int32_t bucket = 0;
  int64_t tensor_begin = 0;
  int64_t arena_begin = 0;
  int64_t length = 0;
};

// A collective: operation `op` of a bucket. Once `release` is done, the memory that it brought something to is free for
// another one.
struct Issue {
  int32_t bucket = 0;
  int32_t op = 0;
  int32_t release = 0;
};

struct Program {
  core::Strategy strategy;
  std::vector<Issue> order;  // the strategy's, of the collectives that this rank takes part in
  std::vector<BucketProgram> buckets;
  std::vector<std::vector<Piece>> pieces_of_tensor;
  int64_t pool_bytes = 0;
  int64_t state_bytes = 0;  // of all codecs
  int32_t ops = 0;          // of all buckets
  bool keeps_residual = false;
  std::vector<std::unique_ptr<compress::Compressor>> codecs;
};

// What the communicator of a level needs for a collective beside its buffers (comm::Communicator::scratch_bytes).
using CollectiveScratch = std::function<int64_t(core::Level level, const comm::Collective& collective)>;

// The strategy must pass core::validate for the table.
core::Result<std::unique_ptr<Program>> compile(const core::Strategy& strategy, const core::GradientTable& table,
                                               const core::Seat& seat, const CollectiveScratch& scratch = {});

}  // namespace gradtune::exec
