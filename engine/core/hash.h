// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// A 64-bit hash of plain data that is the same on every machine: ranks compare it to know that they hold the same
// strategy. FNV-1a over bytes, finished by a mixing step; not for untrusted keys.
#pragma once

#include <cstdint>
#include <string_view>

namespace gradtune::core {

class Hasher {
 public:
  void add(uint64_t value) {
    for (int i = 0; i < 8; ++i) byte(static_cast<unsigned char>(value >> (8 * i)));
  }
  // The length goes first, so that ("ab", "c") and ("a", "bc") differ.
  void add(std::string_view text) {
    add(text.size());
    for (char c : text) byte(static_cast<unsigned char>(c));
  }
  uint64_t value() const {
    uint64_t z = hash_;
    z = (z ^ (z >> 33)) * 0xff51afd7ed558ccdULL;
    z = (z ^ (z >> 33)) * 0xc4ceb9fe1a85ec53ULL;
    return z ^ (z >> 33);
  }

 private:
  void byte(unsigned char b) { hash_ = (hash_ ^ b) * 0x100000001b3ULL; }
  uint64_t hash_ = 0xcbf29ce484222325ULL;
};

}  // namespace gradtune::core
