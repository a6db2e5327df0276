// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
#include "engine/exec/losses.h"

#include <algorithm>
#include <cmath>

namespace gradtune::exec {

void Losses::follow(size_t buckets) {
  losses_.assign(buckets, {});
  left_.assign(buckets, std::nullopt);
}

void Losses::forget_left() { std::ranges::fill(left_, std::nullopt); }

void Losses::keep(int32_t bucket, const Findings& findings, bool is_balanced, int divisor) {
  const LossSample& sample = findings.sample;
  const bool is_clean = findings.of_sample.nonfinite == 0 && findings.of_sample.rejected == 0;
  core::BucketLoss loss;
  if (is_clean && sample.given > 0) loss.error = std::sqrt(sample.missed / sample.given);
  if (sample.gradient > 0) {
    loss.residual = std::sqrt(sample.residual / sample.gradient);
    loss.gradient = std::sqrt(sample.gradient);
  }
  const Balance& balance = findings.balance;
  const std::optional<Total>& left = left_[static_cast<size_t>(bucket)];
  if (is_balanced) loss.imbalance = imbalance(balance, divisor);
  if (left) loss.imbalance = std::max(loss.imbalance, loss_of_residual(*left, balance.begin));
  losses_[static_cast<size_t>(bucket)] = loss;
}

}  // namespace gradtune::exec
