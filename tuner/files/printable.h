// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// Makes text from a file fit to be shown. It replaces whatever a terminal or a page would obey instead of showing.
// It leaves open what is markup.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace gradtune::tuner {

constexpr std::string_view kReplacement = "\xEF\xBF\xBD";  // U+FFFD

// Bytes of the character at the beginning of the text. 0 means that it is not UTF-8, a control character other than
// a tab or the end of a line, one that changes the direction of text, or not allowed in XML 1.0 (section 2.2).
size_t shown_character(std::string_view text);

// Replaces each byte that belongs to no such character with U+FFFD.
std::string printable(std::string_view text);

}  // namespace gradtune::tuner
