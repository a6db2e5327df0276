// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
#include "engine/exec/memory.h"

#include <cstdlib>
#include <cstring>
#include <new>
#include <utility>

namespace gradtune::exec {

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
  std::array<Pair, 3> pairs;
  for (size_t d = 0; d < arenas.size(); ++d) {
    pairs[d].numel = arenas[d].numel;
    for (AlignedBytes& copy : pairs[d].copies) {
      copy = AlignedBytes(arenas[d].numel * 4);
      if (copy.bytes() > 0) std::memset(copy.data(), 0, static_cast<size_t>(copy.bytes()));
    }
  }
  arenas_ = std::move(pairs);
  allocated_ = true;
}

int64_t Residuals::bytes() const {
  int64_t sum = 0;
  for (const Pair& pair : arenas_) sum += pair.copies[0].bytes() + pair.copies[1].bytes();
  return sum;
}

void Residuals::enter(const Program& program) { second_is_current_.assign(program.buckets.size(), false); }

void Residuals::leave(const Program& program) {
  for (size_t b = 0; b < program.buckets.size(); ++b) {
    if (!second_is_current_[b]) continue;
    const BucketProgram& bucket = program.buckets[b];
    std::memcpy(at(bucket, false), at(bucket, true), static_cast<size_t>(bucket.numel) * 4);
  }
  enter(program);
}

std::span<float> Residuals::all(core::DType dtype) {
  const Pair& pair = arenas_[static_cast<size_t>(dtype)];
  return {reinterpret_cast<float*>(pair.copies[0].data()), static_cast<size_t>(pair.numel)};
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

}  // namespace gradtune::exec
