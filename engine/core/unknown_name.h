// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// What is said of a name that is unknown: which one was probably meant, and all that are known. Leaves open what the
// names are of.
#pragma once

#include <span>
#include <string>
#include <string_view>

namespace gradtune::core {

// `compressor "topq:0.1" is unknown (did you mean "topk"?); known are none, topk`. What follows a colon or an @ is not
// compared.
std::string unknown_name(std::string_view what, std::string_view word, std::span<const std::string_view> known);

// ` (did you mean "topk"?)`: the name with the fewest letters added, left out, changed or swapped, whatever their case.
// Empty where more than a third of the letters differ.
std::string did_you_mean(std::string_view word, std::span<const std::string_view> known);

}  // namespace gradtune::core
