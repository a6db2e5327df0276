// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
#include "engine/core/unknown_name.h"

#include <algorithm>
#include <cctype>
#include <numeric>
#include <vector>

namespace gradtune::core {
namespace {

bool alike(char a, char b) {
  return std::tolower(static_cast<unsigned char>(a)) == std::tolower(static_cast<unsigned char>(b));
}

// Optimal string alignment: edits of one letter, and swaps of two neighbouring letters.
size_t distance(std::string_view a, std::string_view b) {
  std::vector<size_t> before_last, last(b.size() + 1), row(b.size() + 1);
  std::iota(last.begin(), last.end(), size_t{0});
  for (size_t i = 1; i <= a.size(); ++i) {
    row[0] = i;
    for (size_t j = 1; j <= b.size(); ++j) {
      row[j] = std::min({last[j] + 1, row[j - 1] + 1, last[j - 1] + (alike(a[i - 1], b[j - 1]) ? 0 : 1)});
      const bool is_swap = i > 1 && j > 1 && alike(a[i - 1], b[j - 2]) && alike(a[i - 2], b[j - 1]);
      if (is_swap) row[j] = std::min(row[j], before_last[j - 2] + 1);
    }
    before_last = last;
    last = row;
  }
  return last.back();
}

std::string_view nearest(std::string_view word, std::span<const std::string_view> known) {
  constexpr size_t kMostLetters = 100;
  if (word.empty() || word.size() > kMostLetters) return {};
  std::string_view best;
  size_t least = std::max<size_t>(word.size() / 3, 1) + 1;
  for (const std::string_view name : known) {
    if (const size_t edits = distance(word, name); edits < least) {
      least = edits;
      best = name;
    }
  }
  return best;
}

}  // namespace

std::string unknown_name(std::string_view what, std::string_view word, std::span<const std::string_view> known) {
  std::string text(what);
  text.append(" \"").append(word).append("\" is unknown");
  text.append(did_you_mean(word.substr(0, word.find_first_of(":@")), known));
  for (size_t n = 0; n < known.size(); ++n) text.append(n == 0 ? "; known are " : ", ").append(known[n]);
  return text;
}

std::string did_you_mean(std::string_view word, std::span<const std::string_view> known) {
  const std::string_view name = nearest(word, known);
  return name.empty() ? "" : " (did you mean \"" + std::string(name) + "\"?)";
}

}  // namespace gradtune::core
