// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// Tracks the updates of parameters between backward passes: which optimizers stepped, whether gradients were
// averages, and updates that were not reported to the session. The latter change a sample of the parameters. Plain
// data, used by the training thread.
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>
#include <utility>

#include "hooks/gradients.h"

namespace gradtune {

class Updates {
 public:
  explicit Updates(Gradients& gradients) : gradients_(gradients) {}

  // A backward pass that averages begins. Returns the optimizers that stepped since the previous one, one bit each.
  uint64_t begin_pass(int64_t step) {
    may_update_ = false;
    gradients_.take_sample(step);
    return std::exchange(stepped_, 0);
  }
  // The program may update the parameters within the pass.
  void allow_in_pass() { may_update_ = true; }
  // True if parameters are as they were when the pass began, or need not be. Waits for a device.
  bool none_in_pass(int64_t step) {
    sample_ = gradients_.sample();
    return may_update_ || sample_now(step) == sample_;
  }
  void end_pass() {
    accumulated_ = false;
    averaged_at_ = sample_;
  }
  // A gradient of a pass under no_sync() was accumulated.
  void accumulate() { accumulated_ = true; }

  // True if an update that was not reported ends a step: the program, or an optimizer that is not wrapped, did it.
  // A single one is part of a step that ends with step(), such as a second pass at other weights. From the second
  // consecutive one on, each ends a step.
  bool unreported_ends_step(int64_t step) {
    if (!averaged_at_ || *averaged_at_ == sample_now(step)) return false;
    return ++unreported_ >= 2;
  }

  struct Reported {
    bool ends_step = false;
    bool lacks_average = false;  // the gradients are this rank's own, accumulated under no_sync()
  };
  // An optimizer stepped. `averaged`: its gradients are averages. Another optimizer's step without a new average is
  // part of the same step.
  Reported report(size_t optimizer, bool averaged) {
    const uint64_t one = uint64_t{1} << std::min<size_t>(optimizer, 63);
    const bool is_part = !averaged && !accumulated_ && stepped_ != 0 && (stepped_ & one) == 0;
    stepped_ = is_part ? stepped_ | one : one;
    if (is_part) return {};
    unreported_ = 0;
    return {.ends_step = true, .lacks_average = !averaged && accumulated_};
  }

  // A step ended.
  void end_step() {
    accumulated_ = false;
    averaged_at_.reset();
  }
  void drop_gradients() { accumulated_ = false; }
  // A checkpoint was loaded.
  void forget() {
    averaged_at_.reset();
    stepped_ = 0;
  }

 private:
  uint64_t sample_now(int64_t step) {
    gradients_.take_sample(step);
    return gradients_.sample();
  }

  Gradients& gradients_;
  bool may_update_ = false;              // within the current pass
  bool accumulated_ = false;             // by a pass under no_sync(), since the last step()
  uint64_t sample_ = 0;                  // of the parameters, when the pass began
  std::optional<uint64_t> averaged_at_;  // the same sample, until a step() follows
  uint64_t stepped_ = 0;                 // optimizers since the last pass that averages, one bit each
  int unreported_ = 0;                   // consecutive updates
};

}  // namespace gradtune
