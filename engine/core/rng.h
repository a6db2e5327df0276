// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// Random numbers that are the same on every compiler and standard library (std distributions are not). The user
// gives one root seed; each component forks its own stream by name, so that a new draw in one component does not
// change another.
#pragma once

#include <cstdint>
#include <string_view>
#include <utility>
#include <vector>

namespace gradtune::core {

// SplitMix64 (Steele, Lea, Flood: Fast splittable pseudorandom number generators, OOPSLA 2014).
class Rng {
 public:
  constexpr explicit Rng(uint64_t seed) : state_(seed) {}

  constexpr uint64_t next() {
    uint64_t z = (state_ += 0x9e3779b97f4a7c15ULL);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ULL;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebULL;
    return z ^ (z >> 31);
  }

  // Uniform in [0, bound), bound > 0. The bias of the multiply-shift is below 2^-32 for bounds below 2^32.
  uint64_t below(uint64_t bound) { return static_cast<uint64_t>((static_cast<__uint128_t>(next()) * bound) >> 64); }

  // Uniform in [0, 1) with 53 random bits.
  double uniform() { return static_cast<double>(next() >> 11) * 0x1.0p-53; }

  // Standard normal (Irwin-Hall of 12 uniforms: tails end at 6 sigma, which suffices for noise models).
  double normal() {
    double sum = -6.0;
    for (int i = 0; i < 12; ++i) sum += uniform();
    return sum;
  }

  // An independent stream for the component of that name.
  Rng fork(std::string_view name) const {
    uint64_t hash = state_ ^ 0xcbf29ce484222325ULL;
    for (char c : name) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3ULL;
    return Rng(Rng(hash).next());
  }

  template <typename T>
  void shuffle(std::vector<T>& items) {
    for (size_t i = items.size(); i > 1; --i) std::swap(items[i - 1], items[below(i)]);
  }

 private:
  uint64_t state_;
};

}  // namespace gradtune::core
