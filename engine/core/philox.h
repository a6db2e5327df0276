// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// Counter-based random numbers: Philox4x32-7 (Salmon, Moraes, Dror, Shaw: Parallel random numbers: as easy as 1, 2,
// 3; SC 2011). Seven rounds are enough to pass all statistical tests of TestU01. The usual ten rounds are a safety
// margin that stochastic rounding does not need, and the rounds take most of the time. A block of 128 random bits is
// a function of a counter and a key, so anyone can compute any element's bits, in any order, without state. This is
// the reference that faster code (engine/compress) has to match.
#pragma once

#include <array>
#include <cstdint>

namespace gradtune::core {

inline constexpr int kPhiloxRounds = 7;
inline constexpr uint32_t kPhiloxMultipliers[] = {0xd2511f53, 0xcd9e8d57};
inline constexpr uint32_t kPhiloxKeySteps[] = {0x9e3779b9, 0xbb67ae85};  // added to the key after each round

constexpr std::array<uint32_t, 4> philox4x32(std::array<uint32_t, 4> counter, std::array<uint32_t, 2> key) {
  for (int round = 0; round < kPhiloxRounds; ++round) {
    const uint64_t first = uint64_t{kPhiloxMultipliers[0]} * counter[0];
    const uint64_t second = uint64_t{kPhiloxMultipliers[1]} * counter[2];
    counter = {static_cast<uint32_t>(second >> 32) ^ counter[1] ^ key[0], static_cast<uint32_t>(second),
               static_cast<uint32_t>(first >> 32) ^ counter[3] ^ key[1], static_cast<uint32_t>(first)};
    key[0] += kPhiloxKeySteps[0];
    key[1] += kPhiloxKeySteps[1];
  }
  return counter;
}

}  // namespace gradtune::core
