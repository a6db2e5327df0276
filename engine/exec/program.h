// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// A strategy made ready to run on one rank: every bucket's option turned into a list of operations on concrete ranges
// and buffers. Compiling is the one place that gives programs their meaning; it refuses, by name, a program that does
// not end in the average of all ranks. Buffers are offsets into one pool, so that strategies that take turns share
// memory.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "engine/comm/communicator.h"
#include "engine/compress/compressor.h"
#include "engine/core/strategy.h"

namespace gradtune::exec {

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
};

struct Op {
  enum class Kind : uint8_t {
    scale,       // gradient *= 1 / N, in its own dtype, before a sum in place
    load,        // 16-bit gradient -> fp32 staging
    encode,      // each of `payloads` from its range
    collective,  // `collective` on `input` and `output`
    decode,      // ranges of the gradient from `payloads`; payloads of one range are added up
    store,       // fp32 staging -> 16-bit gradient
  } kind;
  core::Place place = core::Place::device;
  int32_t step = -1;  // position in the option's program; -1 for what compiling inserted

  const compress::Compressor* codec = nullptr;
  std::vector<Payload> payloads = {};
  bool reencode = false;  // the range was summed over ranks before: its error joins the owner's residual
  int64_t scratch = 0;    // offset of the codec's scratch memory in the pool
  int64_t scratch_bytes = 0;

  comm::Collective::Kind collective{};
  comm::WireType wire = comm::WireType::u8;
  int64_t count = 0;
  int64_t input = 0, output = 0;  // offsets in the pool
  bool on_gradient = false;       // the collective works in place on the gradient itself
};

struct BucketProgram {
  core::DType dtype = core::DType::f32;
  int64_t arena_begin = 0;  // first element in the arena of its dtype
  int64_t numel = 0;
  int64_t staging = -1;  // offset of fp32 staging in the pool; -1 for fp32 gradients
  bool keeps_residual = false;
  std::vector<Op> ops;
  int32_t tensors = 0;  // slices of this many tensors have to be ready
};

// A slice of a tensor: in which bucket, and where in the tensor and in the arena. Elements.
struct Piece {
  int32_t bucket = 0;
  int64_t tensor_begin = 0;
  int64_t arena_begin = 0;
  int64_t length = 0;
};

struct Program {
  core::Strategy strategy;
  uint64_t hash = 0;
  std::vector<BucketProgram> buckets;
  std::vector<std::vector<Piece>> pieces_of_tensor;
  int64_t pool_bytes = 0;
  bool keeps_residual = false;
  std::vector<std::unique_ptr<compress::Compressor>> codecs;
};

// The strategy must pass core::validate for the table.
core::Result<std::unique_ptr<Program>> compile(const core::Strategy& strategy, const core::GradientTable& table,
                                               int rank, int size);

// Part `rank` of n elements cut into `size` shards of equal length (a multiple of 16, the last ones shorter or empty).
Range shard(int64_t n, int rank, int size);

}  // namespace gradtune::exec
