// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// What a user should know though training goes on: a line on standard error, each kind once.
#pragma once

#include <array>
#include <cstdint>
#include <cstdio>
#include <string>

namespace gradtune {

class Warnings {
 public:
  enum class Kind : uint8_t { sparse_gradient, raw_step, step_without_average, count };

  explicit Warnings(int rank) : rank_(rank) {}

  void once(Kind kind, const std::string& sentence) {
    bool& told = told_[static_cast<size_t>(kind)];
    if (told) return;
    told = true;
    std::fprintf(stderr, "gradtune: warning: rank %d: %s\n", rank_, sentence.c_str());
  }

 private:
  const int rank_;
  std::array<bool, static_cast<size_t>(Kind::count)> told_{};
};

}  // namespace gradtune
