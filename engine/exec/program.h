// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// A strategy made ready to run on one rank: every bucket's option becomes a list of operations on concrete ranges
// and buffers. Only the compiler gives programs their meaning. It refuses, with a named reason, a program that does
// not end in the average of all ranks.
//
// Buffers are offsets into one pool in each space, so that strategies that take turns share memory. If the current
// data is not in the space where the next step, or its communicator, works, the compiler inserts a copy. A job whose
// gradients and communicators are on the host has no copies. Buckets also share memory that they need at different
// times:
// - Scratch of codecs: one operation at a time runs at a place, so all operations of that place share one region.
// - Receive buffers of collectives: they are needed until their data is decoded. The scheduler lets at most
//   core::most_held(strategy) collectives in a row hold data that is not decoded yet, so only that many need room at
//   once.
//
// Payloads and staging have memory of their own, since every bucket may have been encoded before the first one is
// sent.
//
// A bucket works on lists of rows (engine/compress/sparse/rows.h) if it is one matrix and its program exchanges only
// payloads of compressors that take rows. Its dense gradient is never stored, and need not be given. Its elements
// stand in the order of core::RowOrder, so that shards are balanced. Such buckets have room for the worst case, and
// touch only the memory that they use.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "engine/comm/communicator.h"
#include "engine/compress/compressor.h"
#include "engine/core/round_up.h"
#include "engine/core/space.h"
#include "engine/core/strategy.h"
#include "engine/exec/op.h"

namespace gradtune::exec {

// Allocations in the pool, and in the memory of state, begin at a cache line.
constexpr int64_t aligned(int64_t bytes) { return core::round_up(bytes, 64); }

// The compressor whose payloads are plain numbers of that dtype, which must not be f64.
const char* plain_codec(core::DType dtype);

// Lists of the rows of a bucket's matrix, in the pool. Steps read one list and write the other.
struct RowLists {
  int64_t rows = 0, width = 0;
  struct Place {
    int64_t at = 0, values = 0;
  };
  std::array<Place, 2> places = {};
  int result = 0;  // the one that holds the average at the end
};

struct BucketProgram {
  core::DType dtype = core::DType::f32;
  int32_t arena = 0;                                       // the arena of its elements (core/arenas.h)
  core::PerSpace<const compress::Compressor*> plain = {};  // codecs whose payloads are numbers of that dtype; f64: null
  int64_t arena_begin = 0;                                 // first element there
  int64_t numel = 0;
  core::Space space = core::Space::host;      // of its gradient
  core::Space begins_in = core::Space::host;  // the space of its first scale or encode, and of its residuals
  int32_t first_work = 0;                     // the position of that operation; those before it copy the gradient there
  // Elements of fp32 staging: the bucket's, and zeros up to a whole number of shards. 0: operations work on the
  // gradient itself, or on a copy of it.
  int64_t staged = 0;
  core::PerSpace<Address> dense = {};    // the memory that operations work on there: staging, or numbers
  core::PerSpace<Address> numbers = {};  // of the gradient's type: the gradient itself, or its copy
  std::optional<RowLists> lists = {};    // empty: works on the gradient
  bool keeps_residual = false;
  bool carries_nonfinite = true;  // all of its codecs do so, and it keeps no residual
  std::vector<Op> ops;            // of this rank, without collectives in which it takes no part
  int32_t first_op = 0;           // the number of its first operation among those of all buckets
  core::Due due = core::Due::backward;
  // The number of operations that must be done before the step's control word may say if all numbers are finite.
  // They end with the last one that encodes or scales. For a bucket that is due later they end with the first one,
  // because its later encodes cannot overflow.
  int32_t judged_ops = 0;
  int32_t tensors = 0;      // slices of this many tensors have to be ready
  int32_t sampled_op = -1;  // the operation whose error is sampled (loss_sample.h); -1: none is lossy
  int64_t sample = -1;      // offset of its sampling memory in the pool of its space
};

// The encode that bucket.sampled_op is the number of.
inline const Encode& sampled_encode(const BucketProgram& bucket) {
  return std::get<Encode>(bucket.ops[static_cast<size_t>(bucket.sampled_op)].work);
}

// The space of an address of that bucket.
core::Space space_of(const Address& address, const BucketProgram& bucket);

// A slice of a tensor: its bucket, and its position in the tensor and in the arena. In elements.
struct Piece {
  int32_t bucket = 0;
  int64_t tensor_begin = 0;
  int64_t arena_begin = 0;
  int64_t length = 0;
};

// A collective: operation `op` of a bucket. Once operation `release` is done, its receive buffer is free for another
// collective.
struct Issue {
  int32_t bucket = 0;
  int32_t op = 0;
  int32_t release = 0;
};

struct Program {
  core::Strategy strategy;
  std::vector<Issue> order;  // the strategy's, without collectives in which this rank takes no part
  std::vector<BucketProgram> buckets;
  std::vector<std::vector<Piece>> pieces_of_tensor;
  core::PerSpace<int64_t> pool_bytes = {};
  std::vector<Range> untouched = {};  // of the host's pool, ascending: bytes touched only as far as they are used
  core::PerSpace<int64_t> states_bytes = {};  // of all codecs
  int64_t state_bytes = 0;                    // the same over all spaces, in the order of checkpoints: the host's first
  // The reports of operations on a device, and their copies for the host: offsets in the pools. Each bucket's report
  // begins at report_begin (engine/exec/findings.h).
  core::PerSpace<int64_t> reports = {};
  int32_t ops = 0;  // of all buckets
  bool keeps_residual = false;
  std::vector<std::unique_ptr<compress::Compressor>> codecs, device_codecs;
};

// The scratch bytes that the communicator of a level needs for a collective (comm::Communicator::scratch_bytes).
using CollectiveScratch = std::function<int64_t(core::Level level, const comm::Collective& collective)>;

class Device;

// The resources that programs run on, besides ranks. By default everything is on the host.
struct Platform {
  CollectiveScratch scratch = {};
  std::function<core::Space(core::Level level)> collectives_in = {};  // the space of communicators
  Device* device = nullptr;                                           // of gradients outside of the host's memory
};

// The strategy must pass core::validate for the table.
core::Result<std::unique_ptr<Program>> compile(const core::Strategy& strategy, const core::GradientTable& table,
                                               const core::Seat& seat, const Platform& platform = {});

}  // namespace gradtune::exec
