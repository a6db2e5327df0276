// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// An operation of a program: its place, and one of the kinds of work, each with the ranges and buffers that it needs.
// The compiler (engine/exec/program.h) determines their meaning together.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>
#include <variant>
#include <vector>

#include "engine/comm/communicator.h"
#include "engine/compress/compressor.h"
#include "engine/core/space.h"
#include "engine/core/strategy.h"

namespace gradtune::exec {

// Elements [begin, begin + length) of a bucket.
struct Range {
  int64_t begin = 0;
  int64_t length = 0;

  bool operator==(const Range&) const = default;
};

// The beginning of a buffer, in bytes: in the pool of a space, in the bucket's gradient or in its next residual.
struct Address {
  enum class Region : uint8_t { host_pool, cuda_pool, gradient, next_residual } region = Region::host_pool;
  int64_t offset = 0;

  bool operator==(const Address&) const = default;
};

constexpr Address in_pool(core::Space space, int64_t offset) {
  return {space == core::Space::host ? Address::Region::host_pool : Address::Region::cuda_pool, offset};
}

// Memory that lasts as long as its operation, in the pool of the operation's space. In bytes.
struct Scratch {
  int64_t offset = 0;
  int64_t bytes = 0;
};

// A payload: its place in the pool of its operation's space, and the elements that it encodes.
struct Payload {
  int64_t offset = 0;  // bytes
  int64_t bytes = 0;
  Range range;
  std::vector<core::Matrix> matrices = {};  // in the range, for codecs that need them
  int64_t state = -1;                       // offset of the codec's state of the range; -1: none
};

// --- kinds of work ---------------------------------------------------------------------------------------------------

// Numbers of the gradient's type -> fp32 staging.
struct Load {};

// The arrived gradient -> a list of rows.
struct Collect {
  int list = 0;
};

// The current data becomes a share of the average: times 1 / N.
struct Scale {
  bool residual = false;  // adds the residual, and writes the next one anew
};

// The members that an encode and the decode of its payloads have in common.
struct Coding {
  const compress::Compressor* codec = nullptr;
  std::vector<Payload> payloads = {};
  int list = -1;                 // the list of rows that an encode reads and a decode writes; -1: the gradient
  compress::Random random = {};  // use, and the rank that keeps the error
  int round = 0;
  int summed = 1;            // the number of payloads that collectives add up, or have added up, in each of these
  int64_t round_memory = 0;  // offset of the data that the codec's rounds pass on, in the pool of its space
};

// Each of `payloads` from its range.
struct Encode : Coding {
  bool residual = false;  // as in Scale
  bool share = false;     // the gradient is a share of the average already
  // The place of the error that this rank keeps, for the bucket's first element. It is empty if another one of the
  // ranks that encode the same sum keeps it.
  std::optional<Address> bank = {};
  Scratch scratch = {};
};

// Ranges of the gradient from `payloads`; payloads of one range are adjacent, and are added up.
struct Decode : Coding {};

// Moves payloads of equal size, in that order, to `to`.
struct Pack {
  std::vector<int64_t> offsets = {};
  int64_t bytes = 0;  // of each
  Address to = {};
};

struct Collective {
  comm::Collective::Kind kind{};
  core::Reduction reduction = core::Reduction::sum;
  core::Level level = core::Level::flat;
  std::optional<core::Subgroup> among = {};  // of the level's communicator; empty: all of its ranks
  comm::WireType wire = comm::WireType::u8;
  int64_t count = 0;
  // For payloads that need not be full: their codec, and the size of each, of which `count` is a multiple.
  const compress::Compressor* codec = nullptr;
  int64_t payload_bytes = 0;
  int root = 0;
  Address input = {}, output = {};
  Scratch scratch = {};  // of the communicator
};

// fp32 staging -> numbers of the gradient's type.
struct Store {};

// Moves bytes between addresses in different spaces.
struct Copy {
  Address from = {}, to = {};
  int64_t bytes = 0;
};

struct Op {
  core::Place place = core::Place::device;
  core::Space space = core::Space::host;  // of the work and its memory; of a copy: the device's
  int32_t step = -1;                      // position in the option's program; -1 if the compiler inserted it
  // For operations on a device. `is_told`: the host has to know when it has ended, because the host works next.
  // `frees`: when it has ended, its memory is free for the data that another collective receives.
  bool is_told = false, frees = false;
  std::variant<Load, Scale, Encode, Pack, Collective, Decode, Store, Copy, Collect> work = {};

  template <typename Work>
  bool is() const {
    return std::holds_alternative<Work>(work);
  }
  // Returns null if the operation does another kind of work.
  template <typename Work>
  const Work* as() const {
    return std::get_if<Work>(&work);
  }
  template <typename Work>
  Work* as() {
    return std::get_if<Work>(&work);
  }
};

// The encoding or decoding that the operation does; null if it is of another kind.
const Coding* coding_of(const Op& op);

std::string_view name_of(const Op& op);

}  // namespace gradtune::exec
