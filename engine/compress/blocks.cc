// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
#include "engine/compress/blocks.h"

#include <bit>

namespace gradtune::compress {
BlockLayout block_layout(int64_t block, int64_t n, int64_t scales_per_block, int64_t code_bytes) {
  const int64_t blocks = (n + block - 1) / block;
  const int64_t scales = blocks * scales_per_block;
  const int64_t scales_at = sizeof(PayloadHeader);
  const int64_t codes_at = scales_at + section_bytes(scales * 4);
  return {block, blocks, scales, scales_at, codes_at, code_bytes, codes_at + section_bytes(code_bytes)};
}

void write_frame(std::span<std::byte> payload, const BlockLayout& layout, uint32_t compressor, int64_t n) {
  write_header(payload, compressor, n, layout.blocks);
  std::byte* const data = payload.data();
  std::fill(data + layout.scales_at + layout.scales * 4, data + layout.codes_at, std::byte{0});
  std::fill(data + layout.codes_at + layout.code_bytes, data + layout.bytes, std::byte{0});
}

core::Status check_blocks(std::span<const std::span<const std::byte>> payloads, const BlockLayout& layout,
                          uint32_t compressor, int64_t n, Queue& queue) {
  if (core::Status frames = check_frames(payloads, layout.bytes, compressor, n, layout.blocks); !frames) return frames;
  for (size_t i = 0; i < payloads.size(); ++i) {
    const auto* bits = reinterpret_cast<const uint32_t*>(payloads[i].data() + layout.scales_at);
    const int64_t bad = find_first(queue, layout.scales, [bits](int64_t s) { return bits[s] >= kInfinityBits; });
    if (bad == layout.scales) continue;
    const auto value = std::to_string(std::bit_cast<float>(bits[bad]));
    return bad_payload(i, payloads.size(), "scale " + std::to_string(bad) + " is " + value);
  }
  return {};
}

}  // namespace gradtune::compress
