// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
#include "engine/exec/residual_owners.h"

#include <algorithm>

namespace gradtune::exec {

std::string codecs_of(const core::Option& option) {
  std::string text;
  for (const core::CompressorSpec& codec : option.codecs) text += (text.empty() ? "" : " ") + core::to_string(codec);
  return text;
}

std::vector<OwnedRange> claim(std::vector<OwnedRange>& holders, int64_t begin, int64_t end, std::string_view codecs) {
  std::vector<OwnedRange> others, kept;
  if (begin == end) return others;
  OwnedRange mine{.begin = begin, .end = end, .codecs = std::string(codecs)};
  for (const OwnedRange& held : holders) {
    const int64_t first = std::max(begin, held.begin), last = std::min(end, held.end);
    const bool is_mine = held.codecs == codecs;
    if (is_mine && first <= last) {  // they touch, so they become one range
      mine.begin = std::min(mine.begin, held.begin);
      mine.end = std::max(mine.end, held.end);
      continue;
    }
    if (first >= last) {
      kept.push_back(held);
      continue;
    }
    others.push_back({first, last, held.codecs});
    if (held.begin < first) kept.push_back({held.begin, first, held.codecs});
    if (last < held.end) kept.push_back({last, held.end, held.codecs});
  }
  kept.push_back(std::move(mine));
  std::ranges::sort(kept, {}, &OwnedRange::begin);
  holders = std::move(kept);
  return others;
}

}  // namespace gradtune::exec
