// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// The owners of residuals: the compressor that left the residual of each element. A residual that the compressor
// itself feeds back is released at its usual rate; under another compressor it might all be released at once. The
// owners do not decide what happens to it then (feedback.h does).
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
  std::string codecs;  // as in the option, with their settings; empty: not known

  bool operator==(const OwnedRange&) const = default;
};
using ResidualOwners = std::vector<std::vector<OwnedRange>>;  // by arena, each in order and without overlap

// The name of an option's compressors: "topk:0.01".
std::string codecs_of(const core::Option& option);

// Assigns elements [begin, end) to these codecs. Returns the ranges among them that other codecs held.
std::vector<OwnedRange> claim(std::vector<OwnedRange>& holders, int64_t begin, int64_t end, std::string_view codecs);

}  // namespace gradtune::exec
