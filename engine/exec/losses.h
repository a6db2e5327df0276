// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// The loss of each bucket's compression on one rank, from samples (loss_sample.h) and from the books of error
// feedback (balance.h). The books go on from step to step: a step begins with the residual that the one before it
// left.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "engine/core/measurement.h"
#include "engine/exec/findings.h"

namespace gradtune::exec {

class Losses {
 public:
  // Called when a program of that many buckets is put in force.
  void follow(size_t buckets);
  // Others may have changed the residuals since the last step.
  void forget_left();
  bool knows_left(int32_t bucket) const { return left_[static_cast<size_t>(bucket)].has_value(); }

  // Called when a bucket is done, with what the step found. `is_balanced`: its books were checked.
  void keep(int32_t bucket, const Findings& findings, bool is_balanced, int divisor);
  // Called if the step counts, with the total of the bucket's residual; none: not known.
  void settle(int32_t bucket, const std::optional<Total>& left) { left_[static_cast<size_t>(bucket)] = left; }

  core::BucketLoss of(int32_t bucket) const { return losses_[static_cast<size_t>(bucket)]; }

 private:
  std::vector<core::BucketLoss> losses_;    // per bucket
  std::vector<std::optional<Total>> left_;  // per bucket: residuals of the step before
};

}  // namespace gradtune::exec
