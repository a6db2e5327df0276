// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// The memory that an executor works on: gradient arenas (the caller's), residual arenas with the same indexing, and
// one pool in each space for payloads, scratch and staging that all strategies share, since only one of them runs in a
// step.
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

// Memory of one space. Between steps; from one thread at a time.
class Allocator {
 public:
  virtual ~Allocator() = default;

  // Zeros, aligned for everything that works on them (at least 64 bytes). Throws std::bad_alloc.
  virtual std::byte* allocate(int64_t bytes) = 0;
  virtual void free(std::byte* data, int64_t bytes) noexcept = 0;
};

// Bytes aligned for SIMD. Those of the host are not touched before use, unless they have to be zeros.
class AlignedBytes {
 public:
  static AlignedBytes zeros(int64_t bytes);
  // Pages that the system gives when they are touched, and not before.
  static AlignedBytes untouched_zeros(int64_t bytes);
  // All but these ranges of it (ascending), which stay untouched.
  static AlignedBytes zeros_but(int64_t bytes, std::span<const Range> untouched);
  static AlignedBytes zeros(int64_t bytes, Allocator* allocator);  // null: of the host
  AlignedBytes() : AlignedBytes(0) {}
  explicit AlignedBytes(int64_t bytes);
  std::byte* data() const { return data_.get(); }
  int64_t bytes() const { return bytes_; }
  // Never frees them: work that does not end may still use them.
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

// Whose memory each space has. Null: plain memory of the host.
using Allocators = core::PerSpace<Allocator*>;

// The gradients of one arena (core/arenas.h), in backward order, without gaps.
struct Arena {
  std::byte* data = nullptr;
  int64_t numel = 0;
  core::Space space = core::Space::host;
};
using Arenas = std::vector<Arena>;  // by number

// fp32 residuals of every element, in units of the unscaled gradient, kept twice: a step reads one copy and writes the
// other, and is undone by not swapping (I6). Which copy is current is known per bucket of the program in force; between
// programs it is always the first.
//
// Apart from them, and only once: those that are *parked*, left by another compressor than the one that keeps these
// elements' residuals now, and waiting to be drained (draining.h). What a step drains of them is a share, so it is
// undone by keeping the number. What an element is owed is the sum of both.
//
// Between programs, all of it is in memory of the host (at home). While a program is in force, those of its buckets
// that begin on a device are there: bring() takes them out, leave() brings them home.
class Residuals {
 public:
  explicit Residuals(const Allocators& allocators = {}) : allocators_(allocators) {}

  // Allocates (zeros) what is asked for and not there yet: all of that or, when it throws, nothing. Of arenas on a
  // device as much there as at home.
  struct Parts {
    bool own = false, parked = false;
  };
  void allocate(const Arenas& arenas, const Parts& parts);
  core::PerSpace<int64_t> bytes_after(const Arenas& arenas, const Parts& parts) const;  // with these
  bool allocated() const { return allocated_; }
  bool has_parked() const { return has_parked_; }
  void free_parked();
  core::PerSpace<int64_t> bytes() const;

  void enter(const Program& program);
  // To where the program's buckets work; a second call does nothing. Waits for it, up to the limit.
  core::Status bring(const Program& program, compress::Queue* device, int64_t timeout_ms);
  // Brings all home, as far as it is out; what is current is in the first copy then, and what is parked was multiplied.
  core::Status leave(const Program& program, compress::Queue* device, int64_t timeout_ms);

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
  // Copies those of buckets that begin on a device, and waits.
  core::Status move(const Program& program, bool out, compress::Queue* device, int64_t timeout_ms);

  Allocators allocators_;
  std::vector<OfArena> arenas_;  // by number
  std::vector<bool> second_is_current_;
  std::vector<float> parked_share_;
  bool allocated_ = false, has_parked_ = false, is_out_ = false;
};

// What compressors keep of buckets from step to step, twice as residuals are, in the space where they work. All zeros
// when a program is put in force.
class States {
 public:
  // What is there, with room for so many bytes; none where there is room. On a device, whose queue copies what is
  // there: this object has to live until that is done.
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
