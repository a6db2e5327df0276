// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// The vector of a step's control collective: the control word, which the caller writes and reads, followed by the
// data that workspaces exchange. It is reduced by maximum.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "engine/comm/communicator.h"

namespace gradtune::exec {

// The count of numbers that a workspace sends behind the control word.
constexpr int kOwnControlWords = 1;

class ControlVector {
 public:
  void begin_step() { numbers_.clear(); }

  // `drained`: residuals were added to gradients on this rank.
  comm::Collective collective(std::span<double> word, bool drained, int64_t timeout_ms) {
    word_ = word;
    numbers_.assign(word.begin(), word.end());
    numbers_.push_back(drained ? 1 : 0);
    return {.kind = comm::Collective::Kind::all_reduce,
            .reduction = comm::Collective::Reduction::max,
            .type = comm::WireType::f64,
            .out = reinterpret_cast<std::byte*>(numbers_.data()),
            .count = static_cast<int64_t>(numbers_.size()),
            .timeout_ms = timeout_ms};
  }

  // Writes the reduced word to the caller, whose it is again afterwards.
  void done() { std::copy_n(numbers_.begin(), word_.size(), word_.begin()); }

  // True if residuals were added to gradients on some rank.
  bool any_drained() const { return !numbers_.empty() && numbers_.back() != 0; }

 private:
  std::vector<double> numbers_;  // of this rank, then of any
  std::span<double> word_;
};

}  // namespace gradtune::exec
