// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
#include "tuner/files/printable.h"

#include <algorithm>
#include <cstdint>

namespace gradtune::tuner {

size_t shown_character(std::string_view text) {
  if (text.empty()) return 0;
  const auto byte = [&](size_t i) { return static_cast<uint32_t>(static_cast<unsigned char>(text[i])); };
  const uint32_t first = byte(0);
  constexpr uint32_t kDelete = 0x7F;
  if (first < 0x80) return (first >= 0x20 && first != kDelete) || first == '\t' || first == '\n' ? 1 : 0;
  const size_t length = first >= 0xF0 ? 4 : first >= 0xE0 ? 3 : 2;
  if (first < 0xC2 || first > 0xF4 || text.size() < length) return 0;
  uint32_t code = first & (0xFFU >> (length + 1));
  for (size_t i = 1; i < length; ++i) {
    if ((byte(i) & 0xC0U) != 0x80U) return 0;
    code = code << 6U | (byte(i) & 0x3FU);
  }
  const bool is_long = (length == 3 && code < 0x800) || (length == 4 && code < 0x10000);
  const bool is_control = code < 0xA0;
  const bool turns_text = (code >= 0x202A && code <= 0x202E) || (code >= 0x2066 && code <= 0x2069);
  const bool is_surrogate = code >= 0xD800 && code <= 0xDFFF;
  const bool is_none = code > 0x10FFFF || (code & 0xFFFEU) == 0xFFFEU;
  return is_long || is_control || turns_text || is_surrogate || is_none ? 0 : length;
}

std::string printable(std::string_view text) {
  std::string shown;
  shown.reserve(text.size());
  while (!text.empty()) {
    const size_t length = shown_character(text);
    shown += length == 0 ? kReplacement : text.substr(0, length);
    text.remove_prefix(std::max<size_t>(length, 1));
  }
  return shown;
}

}  // namespace gradtune::tuner
