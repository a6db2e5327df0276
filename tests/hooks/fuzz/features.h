// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// The named parts of random jobs. Each can be left out of all jobs (FUZZ_WITHOUT=empty,restart), to look past a
// known fault, and to find out which parts a fault needs.
#pragma once

#include <set>
#include <span>
#include <string>
#include <string_view>

namespace gradtune::test {

struct Feature {
  std::string_view name, what;
};
std::span<const Feature> all_features();

class Features {
 public:
  Features() = default;
  // Takes names separated by commas. Throws for an unknown name, and lists the known ones.
  explicit Features(std::string_view without);
  static Features from_environment();

  bool has(std::string_view name) const;

 private:
  std::set<std::string, std::less<>> without_;
};

}  // namespace gradtune::test
