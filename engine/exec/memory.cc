// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
#include "engine/exec/memory.h"

#include <cstdlib>
#include <cstring>
#include <new>
#include <utility>

namespace gradtune::exec {
namespace {

AlignedBytes zeros(int64_t floats) {
  AlignedBytes bytes(floats * 4);
  if (bytes.bytes() > 0) std::memset(bytes.data(), 0, static_cast<size_t>(bytes.bytes()));
  return bytes;
}

void move(std::span<float> from, std::span<float> to, int64_t begin, int64_t end) {
  for (auto i = static_cast<size_t>(begin); i < static_cast<size_t>(end); ++i) {
    to[i] += from[i];
    from[i] = 0;
  }
}

}  // namespace

AlignedBytes::AlignedBytes(int64_t bytes) : bytes_(bytes) {
  constexpr size_t kAlignment = 64;
  const size_t rounded = (static_cast<size_t>(bytes) + kAlignment - 1) / kAlignment * kAlignment;
  if (bytes == 0) return;
  data_.reset(static_cast<std::byte*>(std::aligned_alloc(kAlignment, rounded)));
  if (data_ == nullptr) throw std::bad_alloc();
}

void AlignedBytes::Free::operator()(std::byte* data) const { std::free(data); }

void Residuals::allocate(const Arenas& arenas) {
  if (allocated_) return;
  std::array<Copies, 3> all;
  for (size_t d = 0; d < arenas.size(); ++d) {
    all[d].numel = arenas[d].numel;
    for (AlignedBytes& copy : all[d].copies) copy = zeros(arenas[d].numel);
  }
  for (size_t d = 0; d < arenas.size(); ++d) all[d].parked = std::move(arenas_[d].parked);
  arenas_ = std::move(all);
  allocated_ = true;
}

void Residuals::allocate_parked(const Arenas& arenas) {
  if (has_parked_) return;
  std::array<AlignedBytes, 3> all;
  for (size_t d = 0; d < arenas.size(); ++d) all[d] = zeros(arenas[d].numel);
  for (size_t d = 0; d < arenas.size(); ++d) {
    arenas_[d].parked = std::move(all[d]);
    arenas_[d].numel = arenas[d].numel;
  }
  has_parked_ = true;
}

void Residuals::free_parked() {
  for (Copies& arena : arenas_) arena.parked = AlignedBytes();
  has_parked_ = false;
}

int64_t Residuals::bytes() const {
  int64_t sum = 0;
  for (const Copies& arena : arenas_) {
    sum += arena.copies[0].bytes() + arena.copies[1].bytes() + arena.parked.bytes();
  }
  return sum;
}

void Residuals::enter(const Program& program) {
  second_is_current_.assign(program.buckets.size(), false);
  parked_share_.assign(program.buckets.size(), 1);
}

void Residuals::leave(const Program& program) {
  for (size_t b = 0; b < program.buckets.size(); ++b) {
    const BucketProgram& bucket = program.buckets[b];
    if (second_is_current_[b]) {
      std::memcpy(at(bucket, false), at(bucket, true), static_cast<size_t>(bucket.numel) * 4);
    }
    if (parked_share_[b] == 1 || !has_parked_) continue;
    for (float& value : std::span(parked(bucket), static_cast<size_t>(bucket.numel))) value *= parked_share_[b];
  }
  enter(program);
}

std::span<float> Residuals::all(core::DType dtype) {
  const Copies& arena = arenas_[static_cast<size_t>(dtype)];
  return {reinterpret_cast<float*>(arena.copies[0].data()), static_cast<size_t>(arena.numel)};
}

std::span<float> Residuals::all_parked(core::DType dtype) {
  const Copies& arena = arenas_[static_cast<size_t>(dtype)];
  return {reinterpret_cast<float*>(arena.parked.data()), has_parked_ ? static_cast<size_t>(arena.numel) : 0};
}

void Residuals::park(core::DType dtype, int64_t begin, int64_t end) { move(all(dtype), all_parked(dtype), begin, end); }

void Residuals::unpark(core::DType dtype, int64_t begin, int64_t end) {
  move(all_parked(dtype), all(dtype), begin, end);
}

void States::reserve(int64_t bytes) {
  if (bytes <= copies_[0].bytes()) return;
  for (AlignedBytes& copy : copies_) {
    AlignedBytes larger(bytes);
    std::memset(larger.data(), 0, static_cast<size_t>(bytes));
    if (copy.bytes() > 0) std::memcpy(larger.data(), copy.data(), static_cast<size_t>(copy.bytes()));
    copy = std::move(larger);
  }
}

void States::clear() {
  for (const AlignedBytes& copy : copies_) {
    if (copy.bytes() > 0) std::memset(copy.data(), 0, static_cast<size_t>(copy.bytes()));
  }
}

float* Residuals::at(const BucketProgram& bucket, bool second) const {
  const AlignedBytes& copy = arenas_[static_cast<size_t>(bucket.dtype)].copies[second ? 1 : 0];
  return reinterpret_cast<float*>(copy.data()) + bucket.arena_begin;
}

float* Residuals::parked(const BucketProgram& bucket) const {
  return reinterpret_cast<float*>(arenas_[static_cast<size_t>(bucket.dtype)].parked.data()) + bucket.arena_begin;
}

}  // namespace gradtune::exec
