// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
#include "engine/exec/memory.h"

#include <sys/mman.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <new>
#include <utility>

namespace gradtune::exec {
namespace {

void add_to(std::span<float> from, std::span<float> to, int64_t begin, int64_t end) {
  for (auto i = static_cast<size_t>(begin); i < static_cast<size_t>(end); ++i) {
    to[i] += from[i];
    from[i] = 0;
  }
}

// The bytes of `copies` copies of an arena's residuals: at home, and in the space of the arena.
core::PerSpace<int64_t> copies_in(const Arena& arena, int64_t copies) {
  core::PerSpace<int64_t> bytes;
  bytes[core::Space::host] = arena.numel * 4 * copies;
  bytes[arena.space] = arena.numel * 4 * copies;
  return bytes;
}

}  // namespace

AlignedBytes::AlignedBytes(int64_t bytes) : data_(nullptr, Free{nullptr, 0, /*is_mapped=*/false}), bytes_(bytes) {
  constexpr size_t kAlignment = 64;
  const auto rounded = static_cast<size_t>(core::round_up(bytes, kAlignment));
  if (bytes == 0) return;
  data_.reset(static_cast<std::byte*>(std::aligned_alloc(kAlignment, rounded)));
  if (data_ == nullptr) throw std::bad_alloc();
}

AlignedBytes AlignedBytes::zeros(int64_t bytes) {
  AlignedBytes all(bytes);
  if (bytes > 0) std::memset(all.data(), 0, static_cast<size_t>(bytes));
  return all;
}

AlignedBytes AlignedBytes::zeros(int64_t bytes, Allocator* allocator) {
  if (allocator == nullptr) return zeros(bytes);
  AlignedBytes all;
  if (bytes == 0) return all;
  all.data_ = {allocator->allocate(bytes), Free{allocator, bytes, /*is_mapped=*/false}};
  all.bytes_ = bytes;
  return all;
}

AlignedBytes AlignedBytes::untouched_zeros(int64_t bytes) {
  constexpr int64_t kLeastMapped = 1 << 20;
  if (bytes < kLeastMapped) return zeros(bytes);
  AlignedBytes all(0);
  void* const data = ::mmap(nullptr, static_cast<size_t>(bytes), PROT_READ | PROT_WRITE,
                            MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (data == MAP_FAILED) throw std::bad_alloc();
  all.data_ = {static_cast<std::byte*>(data), Free{nullptr, bytes, /*is_mapped=*/true}};
  all.bytes_ = bytes;
  return all;
}

AlignedBytes AlignedBytes::zeros_but(int64_t bytes, std::span<const Range> untouched) {
  AlignedBytes all(bytes);
  int64_t at = 0;
  const auto zero_to = [&](int64_t end) {
    if (end > at) std::memset(all.data() + at, 0, static_cast<size_t>(end - at));
  };
  for (const Range& range : untouched) {
    zero_to(std::min(range.begin, bytes));
    at = std::max(at, range.begin + range.length);
  }
  zero_to(bytes);
  return all;
}

void AlignedBytes::Free::operator()(std::byte* data) const {
  if (is_mapped) {
    ::munmap(data, static_cast<size_t>(bytes));
  } else {
    allocator == nullptr ? std::free(data) : allocator->free(data, bytes);
  }
}

// --- residuals -------------------------------------------------------------------------------------------------------

void Residuals::allocate(const Arenas& arenas, const Parts& parts) {
  const bool own = parts.own && !allocated_, parked = parts.parked && !has_parked_;
  if (!own && !parked) return;
  std::vector<OfArena> fresh(arenas.size());
  for (size_t a = 0; a < arenas.size(); ++a) {
    for (const core::Space space : core::kSpaces) {
      const int64_t bytes = copies_in(arenas[a], 1)[space];
      const auto zeros = [&] { return AlignedBytes::zeros(bytes, allocators_[space]); };
      if (own) fresh[a].in[space].copies = {zeros(), zeros()};
      if (parked) fresh[a].in[space].parked = zeros();
    }
  }
  arenas_.resize(arenas.size());
  for (size_t a = 0; a < arenas.size(); ++a) {
    for (const core::Space space : core::kSpaces) {
      if (own) arenas_[a].in[space].copies = std::move(fresh[a].in[space].copies);
      if (parked) arenas_[a].in[space].parked = std::move(fresh[a].in[space].parked);
    }
    arenas_[a].numel = arenas[a].numel;
  }
  allocated_ |= own;
  has_parked_ |= parked;
}

core::PerSpace<int64_t> Residuals::bytes_after(const Arenas& arenas, const Parts& parts) const {
  core::PerSpace<int64_t> sum = bytes();
  const int64_t copies = (parts.own && !allocated_ ? 2 : 0) + (parts.parked && !has_parked_ ? 1 : 0);
  for (const Arena& arena : arenas) {
    for (const core::Space space : core::kSpaces) sum[space] += copies_in(arena, copies)[space];
  }
  return sum;
}

void Residuals::free_parked() {
  for (OfArena& arena : arenas_) {
    for (Copies& copies : arena.in.values) copies.parked = AlignedBytes();
  }
  has_parked_ = false;
}

core::PerSpace<int64_t> Residuals::bytes() const {
  core::PerSpace<int64_t> sum;
  for (const OfArena& arena : arenas_) {
    for (const core::Space space : core::kSpaces) {
      const Copies& in = arena.in[space];
      sum[space] += in.copies[0].bytes() + in.copies[1].bytes() + in.parked.bytes();
    }
  }
  return sum;
}

void Residuals::enter(const Program& program) {
  second_is_current_.assign(program.buckets.size(), false);
  parked_share_.assign(program.buckets.size(), 1);
}

core::Status Residuals::move(const Program& program, bool out, compress::Queue* device, int64_t timeout_ms) {
  bool any = false;
  if (!allocated_ && !has_parked_) return {};
  for (size_t b = 0; b < program.buckets.size(); ++b) {
    const BucketProgram& bucket = program.buckets[b];
    if (bucket.begins_in == core::Space::host || bucket.numel == 0) continue;
    core::check(device != nullptr, "residuals on a device are moved by its queue");
    const Copies &home = of(bucket).in[core::Space::host], &away = of(bucket).in[bucket.begins_in];
    const auto copy = [&](const AlignedBytes& at_home, const AlignedBytes& at_work) {
      std::byte* const here = at_home.data() + bucket.arena_begin * 4;
      std::byte* const there = at_work.data() + bucket.arena_begin * 4;
      device->copy(out ? there : here, out ? here : there, bucket.numel * 4);
      any = true;
    };
    if (allocated_) copy(home.copies[0], away.copies[!out && second_is_current_[b] ? 1 : 0]);
    if (has_parked_) copy(home.parked, away.parked);
  }
  return any ? device->mark().wait(timeout_ms) : core::Status();
}

core::Status Residuals::bring(const Program& program, compress::Queue* device, int64_t timeout_ms) {
  if (is_out_) return {};
  is_out_ = true;
  return move(program, /*out=*/true, device, timeout_ms);
}

core::Status Residuals::leave(const Program& program, compress::Queue* device, int64_t timeout_ms) {
  core::Status moved = is_out_ ? move(program, /*out=*/false, device, timeout_ms) : core::Status();
  for (size_t b = 0; b < program.buckets.size(); ++b) {
    const BucketProgram& bucket = program.buckets[b];
    if (second_is_current_[b] && bucket.begins_in == core::Space::host) {
      std::memcpy(at(bucket, false), at(bucket, true), static_cast<size_t>(bucket.numel) * 4);
    }
    if (parked_share_[b] == 1 || !has_parked_) continue;
    const AlignedBytes& home = of(bucket).in[core::Space::host].parked;
    auto* const parked = reinterpret_cast<float*>(home.data()) + bucket.arena_begin;
    for (float& value : std::span(parked, static_cast<size_t>(bucket.numel))) value *= parked_share_[b];
  }
  is_out_ = false;
  enter(program);
  return moved;
}

std::span<float> Residuals::all(size_t arena) {
  if (!allocated_) return {};
  const OfArena& of = arenas_[arena];
  return {reinterpret_cast<float*>(of.in[core::Space::host].copies[0].data()), static_cast<size_t>(of.numel)};
}

std::span<float> Residuals::all_parked(size_t arena) {
  if (!has_parked_) return {};
  const OfArena& of = arenas_[arena];
  return {reinterpret_cast<float*>(of.in[core::Space::host].parked.data()), static_cast<size_t>(of.numel)};
}

void Residuals::park(size_t arena, int64_t begin, int64_t end) { add_to(all(arena), all_parked(arena), begin, end); }

void Residuals::unpark(size_t arena, int64_t begin, int64_t end) { add_to(all_parked(arena), all(arena), begin, end); }

float* Residuals::at(const BucketProgram& bucket, bool second) const {
  const AlignedBytes& copy = of(bucket).in[bucket.begins_in].copies[second ? 1 : 0];
  return reinterpret_cast<float*>(copy.data()) + bucket.arena_begin;
}

float* Residuals::parked(const BucketProgram& bucket) const {
  return reinterpret_cast<float*>(of(bucket).in[bucket.begins_in].parked.data()) + bucket.arena_begin;
}

// --- states ----------------------------------------------------------------------------------------------------------

std::optional<States> States::larger(int64_t bytes, Allocator* allocator, compress::Queue* device) const {
  if (bytes <= copies_[0].bytes()) return std::nullopt;
  States states;
  states.copies_ = {AlignedBytes::zeros(bytes, allocator), AlignedBytes::zeros(bytes, allocator)};
  states.current_ = current_;
  for (size_t i = 0; i < copies_.size(); ++i) {
    const AlignedBytes &from = copies_[i], &to = states.copies_[i];
    if (from.bytes() == 0) continue;
    if (device != nullptr) {
      device->copy(to.data(), from.data(), from.bytes());
    } else {
      std::memcpy(to.data(), from.data(), static_cast<size_t>(from.bytes()));
    }
  }
  return states;
}

void States::clear() {
  for (const AlignedBytes& copy : copies_) {
    if (copy.bytes() > 0) std::memset(copy.data(), 0, static_cast<size_t>(copy.bytes()));
  }
}

void States::clear(compress::Queue& queue) {
  for (const AlignedBytes& copy : copies_) queue.fill(copy.data(), std::byte{0}, copy.bytes());
}

}  // namespace gradtune::exec
