// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// Records, over a few passes, which parameters the forward pass reads and when. A pass goes from the end of an
// update to the end of the backward pass before the next update. Any backward pass on the thread ends the forward
// part. Plain data; it allocates when the tensors are set and when a pass ends.
#pragma once

#include <algorithm>
#include <cstdint>
#include <utility>
#include <vector>

#include "engine/core/median.h"
#include "tuner/driver/pass_times.h"

namespace gradtune {

class ForwardObservation {
 public:
  static constexpr size_t kPasses = 5;

  void set_tensors(size_t tensors) {
    *this = {};
    reads_us_.resize(tensors);
    read_us_.assign(tensors, -1);
  }

  // Records that an update of this number of elements ended, and that a pass begins.
  void begin(int64_t now_ns, int64_t update_ns, int64_t elements) {
    began_ns_ = now_ns;
    forward_us_ = -1;
    std::ranges::fill(read_us_, -1.0);
    if (elements > 0) updates_us_.push_back(static_cast<double>(update_ns) * 1e-3 / static_cast<double>(elements));
  }
  // Called before the first backward pass since then, and once more when that pass begins; later reads are not
  // counted.
  void read(int32_t position, int64_t now_ns) {
    double& read_us = read_us_[static_cast<size_t>(position)];
    if (is_in_forward() && read_us < 0) read_us = us_at(now_ns);
  }
  void begin_backward(int64_t now_ns) {
    if (is_in_forward()) forward_us_ = us_at(now_ns);
  }
  bool is_in_forward() const { return began_ns_ >= 0 && forward_us_ < 0; }

  // The backward pass ended, and gradients are averages. Returns true if enough is known.
  bool end_pass() {
    if (began_ns_ < 0 || forward_us_ < 0) return false;  // the pass began before observation did
    began_ns_ = -1;
    forwards_us_.push_back(forward_us_);
    for (size_t p = 0; p < reads_us_.size(); ++p) {
      if (read_us_[p] >= 0) reads_us_[p].push_back(read_us_[p]);
    }
    return forwards_us_.size() >= kPasses;
  }

  // Medians over the observed passes, valid after end_pass() returned true. A read that was missing in some pass counts
  // as none.
  tuner::ForwardTimes times() const {
    tuner::ForwardTimes times{.read_us = std::vector<double>(reads_us_.size(), -1.0),
                              .forward_us = core::median(forwards_us_),
                              .update_element_us = updates_us_.empty() ? 0 : core::median(updates_us_)};
    for (size_t p = 0; p < reads_us_.size(); ++p) {
      if (reads_us_[p].size() == forwards_us_.size()) times.read_us[p] = core::median(reads_us_[p]);
    }
    return times;
  }

 private:
  double us_at(int64_t now_ns) const { return static_cast<double>(now_ns - began_ns_) * 1e-3; }

  int64_t began_ns_ = -1;        // start of the current pass; -1: none
  double forward_us_ = -1;       // of that pass; -1: it is still in forward
  std::vector<double> read_us_;  // in that pass; -1: not read yet
  std::vector<std::vector<double>> reads_us_;
  std::vector<double> forwards_us_, updates_us_;
};

}  // namespace gradtune
