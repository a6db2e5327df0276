// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// Payloads of compressors that cut elements into blocks and send, for each block, one or more scales, of fp32 or of
// bfloat16: header (count = blocks), scales, codes. Internal to engine/compress.
#pragma once

#include "engine/compress/shared.h"

namespace gradtune::compress {

// Where the sections of such a payload begin, in bytes.
struct BlockLayout {
  int64_t block, blocks, scales, scale_bytes, scales_at, codes_at, code_bytes, bytes;

  int64_t scales_before(int64_t element) const { return element / block * (scales / std::max<int64_t>(blocks, 1)); }
};
BlockLayout block_layout(int64_t block, int64_t n, int64_t scales_per_block, int64_t code_bytes,
                         int64_t scale_bytes = 4);

// Elements of one task of so many: whole blocks.
constexpr int64_t run_elements(int64_t block, int64_t task) { return std::max(block, task / block * block); }

// Writes the header, and zeros between the sections and behind them.
void write_frame(std::span<std::byte> payload, const BlockLayout& layout, uint32_t compressor, int64_t n);

// Every scale has to be finite and not negative. Decoders look at those of a task's elements before they use them, so
// that they are read from memory once; when some are not, the error tells which.
bool scales_are_good(std::span<const std::span<const std::byte>> payloads, const BlockLayout& layout, int64_t begin,
                     int64_t end);
Rejection bad_scale(std::span<const std::span<const std::byte>> payloads, const BlockLayout& layout);

}  // namespace gradtune::compress
