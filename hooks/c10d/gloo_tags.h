// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// The tags of messages over Gloo, by which a receiver finds them. Each kind of message has a range of its own.
#pragma once

#include <cstdint>

namespace gradtune::tags {

struct Range {
  int first;
  int many;

  // The tag that comes `more` after this one; the first one comes after the last one.
  constexpr int after(int tag, int64_t more) const { return first + static_cast<int>((tag - first + more) % many); }
};

constexpr Range kExchanges{.first = 0, .many = 1 << 29};
constexpr Range kEager{.first = 1 << 29, .many = 1 << 29};
constexpr Range kMaxima{.first = 1 << 30, .many = 1 << 30};

}  // namespace gradtune::tags
