// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// A strategy made ready to run on one rank: every bucket's option turned into a list of operations on concrete ranges
// and buffers. Compiling is the one place that gives programs their meaning; it refuses, by name, a program that does
// not end in the average of all ranks.
//
// Buffers are offsets into one pool in each space, so that strategies that take turns share memory. Where the space of
// what is at hand is not the one where the next step works, or its communicator, compiling inserts a copy; on a job
// whose gradients and communicators are the host's there are none. Buckets share memory as well, where they need it at
// different times:
//   scratch of codecs       one operation at a time runs at a place, so all that run there share one region
//   what collectives bring  is needed until it is decoded. The scheduler lets core::most_held(strategy) collectives in
//                           a row have something that is not decoded yet. Only so many need room at once.
// Payloads and staging have room of their own, since every bucket may have been encoded before the first one is sent.
//
// A bucket that is one matrix, whose program exchanges nothing but payloads of compressors that take rows, works on
// lists of rows (engine/compress/sparse/rows.h): its gradient is never laid out, and need not be given so. Its elements
// then stand in the order of core::RowOrder, so that shards are balanced. Such buckets have room for the worst case,
// and touch what they use.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string_view>
#include <vector>

#include "engine/comm/communicator.h"
#include "engine/compress/compressor.h"
#include "engine/core/round_up.h"
#include "engine/core/space.h"
#include "engine/core/strategy.h"

namespace gradtune::exec {

// What is allocated in the pool, and in the memory of state, begins at a cache line.
constexpr int64_t aligned(int64_t bytes) { return core::round_up(bytes, 64); }

// Elements [begin, begin + length) of a bucket.
struct Range {
  int64_t begin = 0;
  int64_t length = 0;
};

// Where a buffer begins: bytes, in the pool of a space or in what belongs to the bucket.
struct Address {
  enum class Region : uint8_t { host_pool, cuda_pool, gradient, next_residual } region = Region::host_pool;
  int64_t offset = 0;

  bool operator==(const Address&) const = default;
};

constexpr Address in_pool(core::Space space, int64_t offset) {
  return {space == core::Space::host ? Address::Region::host_pool : Address::Region::cuda_pool, offset};
}

// Where a payload lies in the pool of its operation's space, and the elements that it stands for.
struct Payload {
  int64_t offset = 0;  // bytes
  int64_t bytes = 0;
  Range range;
  std::vector<core::Matrix> matrices = {};  // in the range, for codecs that need them
  int64_t state = -1;                       // offset of the codec's state of the range; -1: none
};

struct Op {
  enum class Kind : uint8_t {
    load,        // numbers of the gradient's type -> fp32 staging
    scale,       // what is at hand becomes a share of the average: times 1 / N
    encode,      // each of `payloads` from its range
    pack,        // moves payloads to `output`, in the order of `payloads`
    collective,  // `collective` on `input` and `output`
    decode,      // ranges of the gradient from `payloads`; payloads of one range are added up
    store,       // fp32 staging -> numbers of the gradient's type
    copy,        // `count` bytes from `input` to `output`, which are in different spaces
    collect,     // what arrived -> a list of rows
  } kind;
  core::Place place = core::Place::device;
  core::Space space = core::Space::host;  // where it works, and its memory is; of a copy: the device's
  int32_t step = -1;                      // position in the option's program; -1 for what compiling inserted
  // Of a device: the host has to know when it has ended, as its own work comes next; and memory is free then for what
  // another collective brings.
  bool is_told = false, frees = false;

  const compress::Compressor* codec = nullptr;
  std::vector<Payload> payloads = {};
  bool residual = false;  // scale, encode: adds the residual, and writes the next one anew
  int list = -1;          // collect, decode: the list of rows that is written; encode: read; -1: the gradient is
  bool share = false;     // encode: the gradient is a share of the average already
  bool banks = false;     // encode: this rank keeps the error. Where ranks encode the same sum, one of them does
  Address bank = {Address::Region::next_residual};  // ... there, with the bucket's first element
  compress::Random random = {};  // encode, decode: rank (that of the one who keeps the error) and use
  int round = 0;                 // encode, decode
  int summed = 1;                // encode, decode: of how many payloads collectives make, made, each of these
  int64_t round_memory = 0;      // offset of what the codec's rounds leave each other, in the pool of its space
  int64_t scratch = 0;           // offset of the codec's scratch memory there
  int64_t scratch_bytes = 0;

  comm::Collective::Kind collective{};
  core::Reduction reduction = core::Reduction::sum;
  core::Level level = core::Level::flat;
  std::optional<core::Subgroup> among = {};  // of the level's communicator; nothing: all of its ranks
  comm::WireType wire = comm::WireType::u8;
  int64_t count = 0;
  int64_t payload_bytes = 0;  // of payloads that need not be full: what `count` is made of, and `codec` is theirs
  int root = 0;
  Address input = {}, output = {};  // pack has an output only
  int64_t comm_scratch = 0;         // offset of what the communicator needs for itself, in the pool of its space
  int64_t comm_scratch_bytes = 0;
};

std::string_view name_of(Op::Kind kind);

// The compressor whose payloads are numbers of that dtype, which is not f64.
const char* plain_codec(core::DType dtype);

// Lists of the rows of a bucket's matrix, in the pool. Steps read one and write the other.
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
  int32_t arena = 0;                                       // that holds its elements (core/arenas.h)
  core::PerSpace<const compress::Compressor*> plain = {};  // whose payloads are numbers of that dtype; f64: null
  int64_t arena_begin = 0;                                 // first element there
  int64_t numel = 0;
  core::Space space = core::Space::host;      // of its gradient
  core::Space begins_in = core::Space::host;  // where its first scale or encode works, and its residuals are
  int32_t first_work = 0;                     // that operation; those before it bring the gradient there
  // Elements of fp32 staging: the bucket's, and zeros up to a whole number of shards. 0: what operations work on is the
  // gradient itself, or a copy of it.
  int64_t staged = 0;
  core::PerSpace<Address> dense = {};    // what operations work on there: staging, or numbers
  core::PerSpace<Address> numbers = {};  // of the gradient's type: the gradient itself, or where it is copied to
  std::optional<RowLists> lists = {};    // nothing: works on the gradient
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
  int64_t sample = -1;      // offset of what that needs in the pool of its space
};

// Where a buffer of that bucket lies.
core::Space space_of(const Address& address, const BucketProgram& bucket);

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
  core::PerSpace<int64_t> pool_bytes = {};
  std::vector<Range> untouched = {};          // of the host's pool, ascending: bytes that are used as far as it takes
  core::PerSpace<int64_t> states_bytes = {};  // of all codecs
  int64_t state_bytes = 0;                    // the same of all spaces, as checkpoints have it: the host's first
  // Where operations on a device tell what they found, and the copy of that for the host: offsets in the pools, each
  // bucket's from report_of on (engine/exec/workspace.h).
  core::PerSpace<int64_t> reports = {};
  int32_t ops = 0;  // of all buckets
  bool keeps_residual = false;
  std::vector<std::unique_ptr<compress::Compressor>> codecs, device_codecs;
};

// What the communicator of a level needs for a collective beside its buffers (comm::Communicator::scratch_bytes).
using CollectiveScratch = std::function<int64_t(core::Level level, const comm::Collective& collective)>;

class Device;

// What programs run on, besides ranks. By default all is the host's.
struct Platform {
  CollectiveScratch scratch = {};
  std::function<core::Space(core::Level level)> collectives_in = {};  // the space of communicators
  Device* device = nullptr;                                           // of gradients that are not the host's
};

// The strategy must pass core::validate for the table.
core::Result<std::unique_ptr<Program>> compile(const core::Strategy& strategy, const core::GradientTable& table,
                                               const core::Seat& seat, const Platform& platform = {});

}  // namespace gradtune::exec
