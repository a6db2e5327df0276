// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
#include "engine/compress/blocks.h"

#include <algorithm>
#include <bit>

namespace gradtune::compress {
BlockLayout block_layout(int64_t block, int64_t n, int64_t scales_per_block, int64_t code_bytes, int64_t scale_bytes) {
  const int64_t blocks = (n + block - 1) / block;
  const int64_t scales = blocks * scales_per_block;
  const int64_t scales_at = sizeof(PayloadHeader);
  const int64_t codes_at = scales_at + section_bytes(scales * scale_bytes);
  return {block, blocks, scales, scale_bytes, scales_at, codes_at, code_bytes, codes_at + section_bytes(code_bytes)};
}

void write_frame(std::span<std::byte> payload, const BlockLayout& layout, uint32_t compressor, int64_t n) {
  write_header(payload, compressor, n, layout.blocks);
  std::byte* const data = payload.data();
  std::fill(data + layout.scales_at + layout.scales * layout.scale_bytes, data + layout.codes_at, std::byte{0});
  std::fill(data + layout.codes_at + layout.code_bytes, data + layout.bytes, std::byte{0});
}

namespace {

// The bits of a scale as fp32. If the scale is finite and not negative they are below kInfinityBits.
uint32_t wide(uint32_t bits) { return bits; }
uint32_t wide(uint16_t bits) { return uint32_t{bits} << 16; }

template <class Bits>
const Bits* scale_bits(std::span<const std::byte> payload, const BlockLayout& layout) {
  return reinterpret_cast<const Bits*>(payload.data() + layout.scales_at);
}

template <class Bits>
bool are_good(std::span<const std::span<const std::byte>> payloads, const BlockLayout& layout, int64_t first,
              int64_t last) {
  // The first bit of `all` becomes 1 if any scale is negative or not finite. The loop takes as many scales at a time
  // as compilers vectorise by themselves.
  uint32_t seen[8] = {};
  const auto look_at = [&](uint32_t& all, Bits bits) { all |= wide(bits) | (kInfinityBits - 1 - wide(bits)); };
  for (const std::span<const std::byte>& payload : payloads) {
    const Bits* const bits = scale_bits<Bits>(payload, layout);
    int64_t i = first;
    for (; i + 8 <= last; i += 8) {
      for (int64_t j = 0; j < 8; ++j) look_at(seen[j], bits[i + j]);
    }
    for (; i < last; ++i) look_at(seen[0], bits[i]);
  }
  return std::ranges::all_of(seen, [](uint32_t all) { return all >> 31 == 0; });
}

template <class Bits>
Rejection first_bad(std::span<const std::span<const std::byte>> payloads, const BlockLayout& layout) {
  for (size_t i = 0; i < payloads.size(); ++i) {
    const Bits* const bits = scale_bits<Bits>(payloads[i], layout);
    for (int64_t s = 0; s < layout.scales; ++s) {
      if (wide(bits[s]) < kInfinityBits) continue;
      const auto value = std::to_string(std::bit_cast<float>(wide(bits[s])));
      return Rejection{i, "scale " + std::to_string(s) + " is " + value};
    }
  }
  core::check(false, "a scale that was rejected is bad");
  return {};
}

}  // namespace

bool scales_are_good(std::span<const std::span<const std::byte>> payloads, const BlockLayout& layout, int64_t begin,
                     int64_t end) {
  const int64_t first = layout.scales_before(begin), last = layout.scales_before(end + layout.block - 1);
  return layout.scale_bytes == 4 ? are_good<uint32_t>(payloads, layout, first, last)
                                 : are_good<uint16_t>(payloads, layout, first, last);
}

Rejection bad_scale(std::span<const std::span<const std::byte>> payloads, const BlockLayout& layout) {
  return layout.scale_bytes == 4 ? first_bad<uint32_t>(payloads, layout) : first_bad<uint16_t>(payloads, layout);
}

}  // namespace gradtune::compress
