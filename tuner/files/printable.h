// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// Text that came from a file, made fit to be shown. What a terminal or a page would obey instead of showing it is
// replaced. Leaves open what is markup.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace gradtune::tuner {

constexpr std::string_view kReplacement = "\xEF\xBF\xBD";  // U+FFFD

// Bytes of the character at the beginning of the text. 0: it is no UTF-8, a control character but a tab or the end of a
// line, one that turns the direction of text, or none of XML 1.0 (section 2.2).
size_t shown_character(std::string_view text);

// With U+FFFD in the place of each byte that is part of no such character.
std::string printable(std::string_view text);

}  // namespace gradtune::tuner
