// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// Whose residuals are whose: which compressor left those of which elements. A residual that the compressor itself feeds
// back is released as fast as it always was; under another one it might all be released at once. Leaves open what
// becomes of it then (Workspace::run).
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "engine/core/strategy.h"

namespace gradtune::exec {

// Elements [begin, end) of an arena.
struct OwnedRange {
  int64_t begin = 0, end = 0;
  std::string codecs;  // as of the option, with their settings; empty: not known

  bool operator==(const OwnedRange&) const = default;
};
using ResidualOwners = std::vector<std::vector<OwnedRange>>;  // by arena, each in order and without overlap

// What stands for an option's compressors: "topk:0.01".
std::string codecs_of(const core::Option& option);

// Elements [begin, end) are held by these codecs from now on. Returns those of them that others held.
std::vector<OwnedRange> claim(std::vector<OwnedRange>& holders, int64_t begin, int64_t end, std::string_view codecs);

}  // namespace gradtune::exec
