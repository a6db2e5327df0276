// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// The memory that an executor works on: gradient arenas (the caller's), residual arenas with the same indexing, and one
// pool for payloads, scratch and staging that all strategies share, since only one of them runs in a step.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "engine/core/gradient_table.h"
#include "engine/exec/program.h"

namespace gradtune::exec {

// Bytes aligned for SIMD and not touched before use.
class AlignedBytes {
 public:
  static AlignedBytes zeros(int64_t bytes);
  explicit AlignedBytes(int64_t bytes = 0);
  std::byte* data() const { return data_.get(); }
  int64_t bytes() const { return bytes_; }

 private:
  struct Free {
    void operator()(std::byte* data) const;
  };
  std::unique_ptr<std::byte[], Free> data_;
  int64_t bytes_;
};

// The gradients of one arena (core/arenas.h), in backward order, without gaps.
struct Arena {
  std::byte* data = nullptr;
  int64_t numel = 0;
};
using Arenas = std::vector<Arena>;  // by number

// fp32 residuals of every element, in units of the unscaled gradient, kept twice: a step reads one copy and writes the
// other, and is undone by not swapping (I6). Which copy is current is known per bucket of the program in force; between
// programs it is always the first.
//
// Apart from them, and only once: those that are *parked*, left by another compressor than the one that keeps these
// elements' residuals now, and waiting to be drained (draining.h). What a step drains of them is a share, so it is
// undone by keeping the number. What an element is owed is the sum of both.
class Residuals {
 public:
  // Allocates (zeros) what is asked for and not there yet: all of that or, when it throws, nothing.
  struct Parts {
    bool own = false, parked = false;
  };
  void allocate(const Arenas& arenas, const Parts& parts);
  bool allocated() const { return allocated_; }
  bool has_parked() const { return has_parked_; }
  void free_parked();
  int64_t bytes() const;

  void enter(const Program& program);
  void leave(const Program& program);  // copies what is current back to the first copy, and multiplies what is parked

  const float* current(const BucketProgram& bucket, size_t index) const {
    return at(bucket, second_is_current_[index]);
  }
  float* next(const BucketProgram& bucket, size_t index) const { return at(bucket, !second_is_current_[index]); }

  // The step counts: what was written of that bucket, all of it, becomes current.
  void swap(size_t index) { second_is_current_[index] = !second_is_current_[index]; }

  // What is parked of a bucket, to be multiplied by a number before it means anything.
  float* parked(const BucketProgram& bucket) const;
  float& parked_share(size_t index) { return parked_share_[index]; }
  float parked_share(size_t index) const { return parked_share_[index]; }

  // All residuals of an arena, in its order; only between programs.
  std::span<float> all(size_t arena);
  std::span<float> all_parked(size_t arena);  // empty where nothing is

  // Moves those of elements [begin, end) of the arena; only between programs. What was there is added to.
  void park(size_t arena, int64_t begin, int64_t end);
  void unpark(size_t arena, int64_t begin, int64_t end);

 private:
  float* at(const BucketProgram& bucket, bool second) const;

  struct Copies {
    std::array<AlignedBytes, 2> copies;
    AlignedBytes parked;
    int64_t numel = 0;
  };
  std::vector<Copies> arenas_;  // by number
  std::vector<bool> second_is_current_;
  std::vector<float> parked_share_;
  bool allocated_ = false, has_parked_ = false;
};

// What compressors keep of buckets from step to step, twice as residuals are. All zeros when a program is put in force.
class States {
 public:
  // What is there, with room for so many bytes; none where there is room.
  std::optional<States> larger(int64_t bytes) const;
  void clear();
  int64_t bytes() const { return copies_[0].bytes() + copies_[1].bytes(); }

  std::byte* current() const { return copies_[current_].data(); }
  std::byte* next() const { return copies_[1 - current_].data(); }
  void swap() { current_ = 1 - current_; }

 private:
  std::array<AlignedBytes, 2> copies_;
  size_t current_ = 0;
};

}  // namespace gradtune::exec
