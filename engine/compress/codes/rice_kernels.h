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
//
// A stream is a table and the groups. A part is 16 groups, and the table tells where parts begin, so that several
// threads read a stream at once: 16 bits for each part but the first one, which count from the end of the table.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "engine/core/round_up.h"

namespace gradtune::compress {

inline constexpr int64_t kRiceGroup = 64, kRicePart = 16 * kRiceGroup;
inline constexpr int kRiceBeginBits = 16;            // of a part, in the table
inline constexpr int64_t kMostRiceElements = 8'192;  // of a stream, so that begins have room
// A stream is read in words: up to so many bytes behind its end are, too.
inline constexpr int64_t kRiceSlack = 16;

constexpr int64_t rice_parts(int64_t n) { return (n + kRicePart - 1) / kRicePart; }

// Bits of the table of a stream of n elements.
constexpr int64_t rice_table_bits(int64_t n) { return n > 0 ? (rice_parts(n) - 1) * kRiceBeginBits : 0; }

// Bytes that the longest stream of n elements takes while it is written.
constexpr int64_t most_rice_bytes(int64_t n, int bits) {
  const int64_t groups = (n + kRiceGroup - 1) / kRiceGroup;
  return core::round_up((rice_table_bits(n) + groups * (3 + kRiceGroup * bits) + 7) / 8, 8) + 8;
}

// Writes the stream of n <= kMostRiceElements codes; returns its bytes, a multiple of 8, with zeros behind the last
// bit. `codes` is readable, and written, up to a whole group.
size_t pack_rice(uint8_t* codes, size_t n, int bits, std::byte* to);

// Reads n codes back, of a stream that is `from`, and kRiceSlack more bytes are readable. Returns false if the stream
// or a part does not end where it should; codes are valid all the same. `codes` has room for a whole last group.
bool unpack_rice(std::span<const std::byte> from, size_t n, int bits, uint8_t* codes);

}  // namespace gradtune::compress
