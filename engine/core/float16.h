// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// The 16-bit floating-point types, one element at a time, rounded to nearest even. This is the reference that faster
// code (engine/compress) has to match.
#pragma once

#include <bit>
#include <cstdint>

namespace gradtune::core {

constexpr float widen_bf16(uint16_t bits) { return std::bit_cast<float>(static_cast<uint32_t>(bits) << 16); }

constexpr uint16_t narrow_bf16(float value) {
  const auto bits = std::bit_cast<uint32_t>(value);
  if (value != value) return static_cast<uint16_t>((bits >> 16) | 0x40);  // keeps a NaN a NaN
  return static_cast<uint16_t>((bits + 0x7fff + ((bits >> 16) & 1)) >> 16);
}

constexpr float widen_f16(uint16_t bits) { return static_cast<float>(std::bit_cast<_Float16>(bits)); }
constexpr uint16_t narrow_f16(float value) { return std::bit_cast<uint16_t>(static_cast<_Float16>(value)); }

// For templates over the stored type of elements: `Stored` is the type in memory, `Number` the type to calculate
// with.
template <typename T>
struct Plain {
  using Stored = T;
  using Number = T;
  static constexpr Number load(Stored value) { return value; }
  static constexpr Stored store(Number value) { return value; }
};
struct Bf16 {
  using Stored = uint16_t;
  using Number = float;
  static constexpr Number load(Stored bits) { return widen_bf16(bits); }
  static constexpr Stored store(Number value) { return narrow_bf16(value); }
};
struct F16 {
  using Stored = uint16_t;
  using Number = float;
  static constexpr Number load(Stored bits) { return widen_f16(bits); }
  static constexpr Stored store(Number value) { return narrow_f16(value); }
};

}  // namespace gradtune::core
