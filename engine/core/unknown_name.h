// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// The message for an unknown name: it lists all known names and suggests the one that was probably meant. The names
// may be of anything.
#pragma once

#include <span>
#include <string>
#include <string_view>

namespace gradtune::core {

// `compressor "topq:0.1" is unknown (did you mean "topk"?); known are none, topk`. The text after a colon or an @ is
// not compared.
std::string unknown_name(std::string_view what, std::string_view word, std::span<const std::string_view> known);

// ` (did you mean "topk"?)`: the name with the fewest letters added, left out, changed or swapped, ignoring case.
// Empty if more than a third of the letters differ.
std::string did_you_mean(std::string_view word, std::span<const std::string_view> known);

}  // namespace gradtune::core
