// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// The payload format of compressors that cut elements into blocks and send one or more scales for each block, in fp32
// or bfloat16. The sections are: header (count = blocks), scales, codes. Internal to engine/compress.
#pragma once

#include "engine/compress/shared.h"

namespace gradtune::compress {

// The layout of such a payload: counts, and the positions and sizes of its sections in bytes.
struct BlockLayout {
  int64_t block, blocks, scales, scale_bytes, scales_at, codes_at, code_bytes, bytes;

  int64_t scales_before(int64_t element) const { return element / block * (scales / std::max<int64_t>(blocks, 1)); }
};
BlockLayout block_layout(int64_t block, int64_t n, int64_t scales_per_block, int64_t code_bytes,
                         int64_t scale_bytes = 4);

// Elements of one task when tasks should have about `task` elements: whole blocks.
constexpr int64_t run_elements(int64_t block, int64_t task) { return std::max(block, task / block * block); }

// Writes the header, and zeros between the sections and behind them.
void write_frame(std::span<std::byte> payload, const BlockLayout& layout, uint32_t compressor, int64_t n);

// Every scale has to be finite and not negative. A decoder checks the scales of a task's elements just before it uses
// them, so they are read from memory once. If some are bad, bad_scale finds the first one for the error.
bool scales_are_good(std::span<const std::span<const std::byte>> payloads, const BlockLayout& layout, int64_t begin,
                     int64_t end);
Rejection bad_scale(std::span<const std::span<const std::byte>> payloads, const BlockLayout& layout);

}  // namespace gradtune::compress
