// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// Integers around 0 in as few bits as Rice's code needs for them (Rice, 1979), a group of 64 elements at a time.
// Internal to engine/compress.
//
// A code c of 3 or 4 bits stands for the integer c - L, L = 2^(bits - 1) - 1, of magnitude m <= L. A group has a number
// k <= bits - 2, the one that takes fewest bits, and of ties the least. It is, one behind the other, without gaps:
// - 3 bits: k; or 7 and nothing else if all integers are 0.
// - k words: bit 0, 1, ... k - 1 of every m.
// - up to L >> k words of unary digits. Word j marks the elements with (m >> k) > j. It has a bit for each element that
//   word j - 1 marks; word 0 has one for every element. The words end when none is marked.
// - one word: the signs, a bit for each m > 0, set if the integer is negative.
// A word has a bit for each of its elements, in their order. So a group never takes more than 3 + 64 * bits bits, and
// what is read back is always made of valid codes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "engine/core/round_up.h"

namespace gradtune::compress {

inline constexpr int64_t kRiceGroup = 64;
// A stream is read in words: up to so many bytes behind its end are, too.
inline constexpr int64_t kRiceSlack = 16;

// Bytes that the longest stream of n elements takes while it is written.
constexpr int64_t most_rice_bytes(int64_t n, int bits) {
  const int64_t groups = (n + kRiceGroup - 1) / kRiceGroup;
  return core::round_up((groups * (3 + kRiceGroup * bits) + 7) / 8, 8) + 8;
}

// Writes the stream of n codes; returns its bytes, a multiple of 8, with zeros behind the last bit. `codes` is
// readable, and written, up to a whole group.
size_t pack_rice(uint8_t* codes, size_t n, int bits, std::byte* to);

// Reads n codes back, of a stream that is `from`, and kRiceSlack more bytes are readable. Returns whether the stream
// ends where they do; if not, codes are valid all the same. `codes` has room for a whole last group.
bool unpack_rice(std::span<const std::byte> from, size_t n, int bits, uint8_t* codes);

}  // namespace gradtune::compress
