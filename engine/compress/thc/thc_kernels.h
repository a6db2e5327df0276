// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// Kernels of `thc`, over a run of blocks. Internal to engine/compress.
//
// The rotation of a block x: y = H D x / 32, where D changes signs and H is the Hadamard matrix of order 1024, whose
// entries are 1 and -1. It is orthonormal, and its inverse is D H / 32. A shorter block is rotated with zeros behind
// it.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

#include "engine/compress/shared.h"

namespace gradtune::compress {

inline constexpr int64_t kRotated = 1024;

// A set bit changes the sign of an element.
using RotationSigns = std::array<uint32_t, kRotated / 32>;

// The values of codes 0 ... levels: low + code * unit, from low to -low. With unit == 0 all of them are zero.
struct ThcLevels {
  float low = 0, unit = 0;
  int levels = 1;
};

// The Euclidean norm of gradient + residual.
double norm_of(const float* gradient, const float* residual, size_t n);

// The data of a block that all ranks share.
struct ThcBlock {
  RotationSigns signs;
  ThcLevels levels;
};

struct ThcTarget {
  std::span<const ThcBlock> blocks;  // of the run, whole ones but for the last
  Random random;
  int64_t first_element;  // the position of the first element in the whole gradient
  uint8_t* codes;         // kRotated for each block
  bool stream;
};
void encode_thc(const EncodeRun& run, const ThcTarget& to);

struct ThcDecode {
  std::span<const std::span<const std::byte>> payloads;  // sums of codes
  size_t codes_at;                                       // of this run, in bytes from the start of each payload
  int summed;                                            // number of codes in each sum
  std::span<const ThcBlock> blocks;                      // of the run, whole ones but for the last
  float* out;
  size_t n;
  bool accumulate;
  bool stream;
};
// False if a sum of codes is larger than a valid one; `out` then holds garbage.
bool decode_thc(const ThcDecode& run);

}  // namespace gradtune::compress
