// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// The memory that an executor works on: gradient arenas (the caller's), residual arenas with the same indexing, and
// one pool in each space. The pool holds payloads, scratch and staging memory; all strategies share it, since only
// one of them runs in a step.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "engine/compress/queue.h"
#include "engine/core/arenas.h"
#include "engine/core/space.h"
#include "engine/exec/program.h"

namespace gradtune::exec {

// Memory of one space. Called between steps, from one thread at a time.
class Allocator {
 public:
  virtual ~Allocator() = default;

  // Zeros, aligned for all code that works on them (at least 64 bytes). Throws std::bad_alloc.
  virtual std::byte* allocate(int64_t bytes) = 0;
  virtual void free(std::byte* data, int64_t bytes) noexcept = 0;
};

// Bytes aligned for SIMD. Memory of the host is not touched before use, unless it has to be zeros.
class AlignedBytes {
 public:
  static AlignedBytes zeros(int64_t bytes);
  // Zeros in pages that the system provides only when they are touched.
  static AlignedBytes untouched_zeros(int64_t bytes);
  // Zeros whose pages are touched, except for the given ranges (ascending), which stay untouched.
  static AlignedBytes zeros_but(int64_t bytes, std::span<const Range> untouched);
  static AlignedBytes zeros(int64_t bytes, Allocator* allocator);  // null: memory of the host
  AlignedBytes() : AlignedBytes(0) {}
  explicit AlignedBytes(int64_t bytes);
  std::byte* data() const { return data_.get(); }
  int64_t bytes() const { return bytes_; }
  // Never frees the memory: work that does not end may still use it.
  void abandon() { [[maybe_unused]] std::byte* const left = data_.release(); }

 private:
  struct Free {
    Allocator* allocator;
    int64_t bytes;
    bool is_mapped;
    void operator()(std::byte* data) const;
  };
  std::unique_ptr<std::byte[], Free> data_;
  int64_t bytes_;
};

// The allocator of each space. Null: plain memory of the host.
using Allocators = core::PerSpace<Allocator*>;

// The gradients of one arena (core/arenas.h), in backward order, without gaps.
struct Arena {
  std::byte* data = nullptr;
  int64_t numel = 0;
  core::Space space = core::Space::host;
};
using Arenas = std::vector<Arena>;  // by number

// fp32 residuals of every element, in units of the unscaled gradient, kept twice: a step reads one copy and writes
// the other, and is undone by not swapping (I6). Each bucket of the program in force knows which copy is current;
// between programs it is always the first.
//
// There are also *parked* residuals, which are kept only once. They were left by another compressor than the one
// that keeps these elements' residuals now, and wait to be drained (draining.h). A step drains a share of them, so
// it is undone by keeping the old share. The total residual of an element is the sum of both.
//
// Between programs, all residuals are in memory of the host (at home). While a program is in force, those of its
// buckets that begin on a device are there: bring() copies them to the device, leave() brings them home.
class Residuals {
 public:
  explicit Residuals(const Allocators& allocators = {}) : allocators_(allocators) {}

  // Allocates the requested parts that do not exist yet, as zeros; if it throws, it has allocated nothing. Arenas on
  // a device get as much memory there as at home.
  struct Parts {
    bool own = false, parked = false;
  };
  void allocate(const Arenas& arenas, const Parts& parts);
  core::PerSpace<int64_t> bytes_after(const Arenas& arenas, const Parts& parts) const;  // if these parts were allocated
  bool allocated() const { return allocated_; }
  bool has_parked() const { return has_parked_; }
  void free_parked();
  core::PerSpace<int64_t> bytes() const;

  void enter(const Program& program);
  // Copies the residuals to the spaces where the program's buckets work; a second call does nothing. Waits for the
  // copies, up to the limit.
  core::Status bring(const Program& program, compress::Queue* device, int64_t timeout_ms);
  // Brings home all residuals that are out. The first copy is then the current one, and parked residuals have been
  // multiplied by their share.
  core::Status leave(const Program& program, compress::Queue* device, int64_t timeout_ms);

  const float* current(const BucketProgram& bucket, size_t index) const {
    return at(bucket, second_is_current_[index]);
  }
  float* next(const BucketProgram& bucket, size_t index) const { return at(bucket, !second_is_current_[index]); }

  // Called if the step counts: all that was written for that bucket becomes current.
  void swap(size_t index) { second_is_current_[index] = !second_is_current_[index]; }

  // The parked residuals of a bucket; their values are these numbers times parked_share().
  float* parked(const BucketProgram& bucket) const;
  float& parked_share(size_t index) { return parked_share_[index]; }
  float parked_share(size_t index) const { return parked_share_[index]; }

  // All residuals of an arena, in its order; only between programs.
  std::span<float> all(size_t arena);
  std::span<float> all_parked(size_t arena);  // empty if there are none

  // Move the residuals of elements [begin, end) of the arena to the other kind, adding to those already there; only
  // between programs.
  void park(size_t arena, int64_t begin, int64_t end);
  void unpark(size_t arena, int64_t begin, int64_t end);

 private:
  struct Copies {
    std::array<AlignedBytes, 2> copies;
    AlignedBytes parked;
  };
  struct OfArena {
    core::PerSpace<Copies> in;
    int64_t numel = 0;
  };
  const OfArena& of(const BucketProgram& bucket) const { return arenas_[static_cast<size_t>(bucket.arena)]; }
  float* at(const BucketProgram& bucket, bool second) const;
  // Copies the residuals of buckets that begin on a device, and waits.
  core::Status move(const Program& program, bool out, compress::Queue* device, int64_t timeout_ms);

  Allocators allocators_;
  std::vector<OfArena> arenas_;  // by number
  std::vector<bool> second_is_current_;
  std::vector<float> parked_share_;
  bool allocated_ = false, has_parked_ = false, is_out_ = false;
};

// The state that compressors keep for buckets from step to step, twice as residuals are, in the space where they
// work. It is all zeros when a program is put in force.
class States {
 public:
  // A copy of the state, with room for `bytes` bytes; nothing if there is room already. On a device the copy is made
  // by its queue: this object has to live until that is done.
  std::optional<States> larger(int64_t bytes, Allocator* allocator = nullptr, compress::Queue* device = nullptr) const;
  void clear();                        // of the host
  void clear(compress::Queue& queue);  // of a device
  int64_t bytes() const { return copies_[0].bytes() + copies_[1].bytes(); }

  std::byte* current() const { return copies_[current_].data(); }
  std::byte* next() const { return copies_[1 - current_].data(); }
  void swap() { current_ = 1 - current_; }

 private:
  std::array<AlignedBytes, 2> copies_;
  size_t current_ = 0;
};

}  // namespace gradtune::exec
