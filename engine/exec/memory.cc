// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
#include "engine/exec/memory.h"

#include <cstdlib>
#include <cstring>
#include <new>
#include <utility>

namespace gradtune::exec {
namespace {

void move(std::span<float> from, std::span<float> to, int64_t begin, int64_t end) {
  for (auto i = static_cast<size_t>(begin); i < static_cast<size_t>(end); ++i) {
    to[i] += from[i];
    from[i] = 0;
  }
}

}  // namespace

AlignedBytes::AlignedBytes(int64_t bytes) : bytes_(bytes) {
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

void AlignedBytes::Free::operator()(std::byte* data) const { std::free(data); }

void Residuals::allocate(const Arenas& arenas, const Parts& parts) {
  const bool own = parts.own && !allocated_, parked = parts.parked && !has_parked_;
  if (!own && !parked) return;
  std::vector<Copies> fresh(arenas.size());
  arenas_.resize(arenas.size());
  for (size_t d = 0; d < arenas.size(); ++d) {
    const int64_t bytes = arenas[d].numel * 4;
    if (own) fresh[d].copies = {AlignedBytes::zeros(bytes), AlignedBytes::zeros(bytes)};
    if (parked) fresh[d].parked = AlignedBytes::zeros(bytes);
  }
  for (size_t d = 0; d < arenas.size(); ++d) {
    if (own) arenas_[d].copies = std::move(fresh[d].copies);
    if (parked) arenas_[d].parked = std::move(fresh[d].parked);
    arenas_[d].numel = arenas[d].numel;
  }
  allocated_ |= own;
  has_parked_ |= parked;
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

std::span<float> Residuals::all(size_t arena) {
  if (!allocated_) return {};
  const Copies& copies = arenas_[arena];
  return {reinterpret_cast<float*>(copies.copies[0].data()), static_cast<size_t>(copies.numel)};
}

std::span<float> Residuals::all_parked(size_t arena) {
  if (!has_parked_) return {};
  const Copies& copies = arenas_[arena];
  return {reinterpret_cast<float*>(copies.parked.data()), static_cast<size_t>(copies.numel)};
}

void Residuals::park(size_t arena, int64_t begin, int64_t end) { move(all(arena), all_parked(arena), begin, end); }

void Residuals::unpark(size_t arena, int64_t begin, int64_t end) { move(all_parked(arena), all(arena), begin, end); }

std::optional<States> States::larger(int64_t bytes) const {
  if (bytes <= copies_[0].bytes()) return std::nullopt;
  States states;
  states.copies_ = {AlignedBytes::zeros(bytes), AlignedBytes::zeros(bytes)};
  states.current_ = current_;
  for (size_t i = 0; i < copies_.size(); ++i) {
    const AlignedBytes& copy = copies_[i];
    if (copy.bytes() > 0) std::memcpy(states.copies_[i].data(), copy.data(), static_cast<size_t>(copy.bytes()));
  }
  return states;
}

void States::clear() {
  for (const AlignedBytes& copy : copies_) {
    if (copy.bytes() > 0) std::memset(copy.data(), 0, static_cast<size_t>(copy.bytes()));
  }
}

float* Residuals::at(const BucketProgram& bucket, bool second) const {
  const AlignedBytes& copy = arenas_[static_cast<size_t>(bucket.arena)].copies[second ? 1 : 0];
  return reinterpret_cast<float*>(copy.data()) + bucket.arena_begin;
}

float* Residuals::parked(const BucketProgram& bucket) const {
  return reinterpret_cast<float*>(arenas_[static_cast<size_t>(bucket.arena)].parked.data()) + bucket.arena_begin;
}

}  // namespace gradtune::exec
