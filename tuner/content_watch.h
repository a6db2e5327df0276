// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// Whether the content of a tensor's gradients (core::Content) has changed for good: means over windows of steps against
// that of the first window. Plain data; what follows from a change is left open.
#pragma once

#include <optional>

namespace gradtune::tuner {

// Of rows: the share that is not zero on one rank, and in the sum of all.
struct RowShares {
  double of_one = 0, of_all = 0;

  bool operator==(const RowShares&) const = default;
};

class ContentWatch {
 public:
  // A step. Once two windows in a row differ from the level by a quarter of it and by four standard errors of its mean:
  // the mean of the second one, which is the level from then on. Each time windows get twice as long, so a job that
  // swings to and fro is told of ever less often.
  std::optional<RowShares> record(const RowShares& seen);

 private:
  struct Window {
    int steps = 0;
    RowShares sum = {}, sum_of_squares = {};
    RowShares mean() const;
    RowShares error() const;  // of the mean, as steps vary
  };
  bool is_beyond(const Window& window) const;

  Window now_;
  std::optional<Window> level_;
  int window_steps_ = 20;
  bool was_beyond_ = false;
};

}  // namespace gradtune::tuner
