// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// The members of the family that sends packed integers, and where the sections of their payloads are (int_packed.cc
// says what they hold), for the host and for devices. Internal to engine/compress.
#pragma once

#include <algorithm>
#include <iterator>
#include <string_view>

#include "engine/compress/blocks.h"
#include "engine/compress/codes/block_codes_kernels.h"
#include "engine/compress/codes/rice_kernels.h"

namespace gradtune::compress {

inline constexpr int64_t kIntPackedRun = kBlockElements;  // elements; so many at most are in blocks, too
static_assert(kIntPackedRun <= kMostRiceElements);
inline constexpr int64_t kIntPackedUnit = 8;  // bytes, in which it is told where streams end

struct IntPackedCode {
  std::string_view name;
  uint32_t id;
  int bits;
};
inline constexpr IntPackedCode kIntPackedCodes[] = {{"int4packed", compressor_id("in4p"), 4},
                                                    {"int3packed", compressor_id("in3p"), 3}};

inline const IntPackedCode& int_packed_code_of(std::string_view name) {
  const auto* const code = std::ranges::find(kIntPackedCodes, name, &IntPackedCode::name);
  core::check(code != std::end(kIntPackedCodes), "it is one of the compressors that send packed integers");
  return *code;
}

// In bytes, but for the numbers of runs and elements.
struct IntPackedLayout {
  int64_t block, run, runs, ends_at, streams_at, most_of_run, bytes;
  BlockLayout scales;  // with no codes
};

inline IntPackedLayout int_packed_layout(const core::CompressorSpec& spec, int64_t n) {
  const int bits = int_packed_code_of(spec.name).bits;
  IntPackedLayout layout{};
  layout.block = static_cast<int64_t>(spec.parameter);
  layout.run = run_elements(layout.block, kIntPackedRun);
  layout.runs = (n + layout.run - 1) / layout.run;
  layout.scales =
      block_layout(layout.block, n, /*scales_per_block=*/1, /*code_bytes=*/0, unit_bytes(CodeFormat::Unit::bf16));
  layout.ends_at = layout.scales.codes_at;
  layout.streams_at = layout.ends_at + section_bytes(layout.runs * 4);
  layout.most_of_run = most_rice_bytes(layout.run, bits);
  const int64_t slack = n > 0 ? kRiceSlack : 0;
  layout.bytes = section_bytes(layout.streams_at + layout.runs * layout.most_of_run + slack);
  return layout;
}

}  // namespace gradtune::compress
