// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// The places of the sections of a packed payload (packed.cc says what they hold). Internal to engine/compress.
#pragma once

#include "engine/compress/packed/packed_kernels.h"
#include "engine/compress/shared.h"

namespace gradtune::compress {

inline constexpr int64_t kPackedRun = kBlockElements;  // elements; whole groups
inline constexpr int64_t kPackedUnit = 8;              // bytes, in which it is told where runs end

constexpr uint32_t packed_id(PackedType type) {
  return type == PackedType::f32 ? compressor_id("pk32") : compressor_id("pk16");
}

// In bytes, but for the numbers of runs and groups.
struct PackedLayout {
  int64_t runs, groups, headers_at, groups_at, bytes;
};

constexpr PackedLayout packed_layout(PackedType type, int64_t n) {
  PackedLayout layout{};
  layout.runs = (n + kPackedRun - 1) / kPackedRun;
  layout.groups = (n + kGroupElements - 1) / kGroupElements;
  layout.headers_at = static_cast<int64_t>(sizeof(PayloadHeader)) + section_bytes(layout.runs * 4);
  layout.groups_at = layout.headers_at + section_bytes(layout.groups * static_cast<int64_t>(sizeof(GroupHeader)));
  layout.bytes = section_bytes(layout.groups_at + layout.groups * group_bytes(type, 8));
  return layout;
}

}  // namespace gradtune::compress
