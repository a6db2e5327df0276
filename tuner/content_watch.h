// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// Decides if the content of a tensor's gradients (core::Content) has changed for good. It compares means over
// windows of steps with that of the first window. It is plain data, and leaves open what follows from a change.
#pragma once

#include <optional>

namespace gradtune::tuner {

// Shares of rows that are not zero: on one rank, and in the sum of all ranks.
struct RowShares {
  double of_one = 0, of_all = 0;

  bool operator==(const RowShares&) const = default;
};

class ContentWatch {
 public:
  // Records a step. A change is found once two windows in a row differ from the level by a quarter of it and by four
  // standard errors of its mean. The result is the mean of the second window, which becomes the level. Each time
  // windows get twice as long, so a job that oscillates is reported ever less often.
  std::optional<RowShares> record(const RowShares& seen);

 private:
  struct Window {
    int steps = 0;
    RowShares sum = {}, sum_of_squares = {};
    RowShares mean() const;
    RowShares error() const;  // of the mean, given the variation between steps
  };
  bool is_beyond(const Window& window) const;

  Window now_;
  std::optional<Window> level_;
  int window_steps_ = 20;
  bool was_beyond_ = false;
};

}  // namespace gradtune::tuner
