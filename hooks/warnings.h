// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// Warnings for the user while training goes on; each kind is given once.
#pragma once

#include <array>
#include <cstdint>
#include <string>

#include "hooks/front.h"

namespace gradtune {

class Warnings {
 public:
  enum class Kind : uint8_t { step_without_average, no_overlap, no_kernels, not_prepared, count };

  // The front must outlive this object.
  Warnings(Front& front, int rank) : front_(front), rank_(rank) {}

  void once(Kind kind, const std::string& sentence) {
    bool& told = told_[static_cast<size_t>(kind)];
    if (told) return;
    told = true;
    front_.warn("rank " + std::to_string(rank_) + ": " + sentence);
  }

 private:
  Front& front_;
  const int rank_;
  std::array<bool, static_cast<size_t>(Kind::count)> told_{};
};

}  // namespace gradtune
