// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
#include "tuner/error_budget.h"

#include <algorithm>

namespace gradtune::tuner {

template <int N>
double ErrorBudget::Window<N>::median() const {
  std::array<double, N> sorted = values;
  const int n = std::min(count, N);
  const auto end = sorted.begin() + n, middle = sorted.begin() + n / 2;
  std::nth_element(sorted.begin(), middle, end);
  return n % 2 == 1 ? *middle : (*middle + *std::max_element(sorted.begin(), middle)) / 2;
}

void ErrorBudget::run(size_t buckets) {
  is_committed_ = false;
  buckets_.assign(buckets, {});
}

void ErrorBudget::commit(int32_t slot, size_t buckets) {
  is_committed_ = true;
  buckets_.assign(buckets, {});
  if (committed_ == slot) return;
  committed_ = slot;
  allowed_.assign(buckets, budget_);
}

core::Excess ErrorBudget::record(std::span<const core::BucketLoss> losses) {
  core::Excess worst;
  const auto consider = [&](size_t bucket, core::Excess excess) {
    excess.bucket = static_cast<int32_t>(bucket);
    if (worst.kind == core::Excess::Kind::none || excess.value * worst.allowed > worst.value * excess.allowed) {
      worst = excess;
    }
  };
  for (size_t b = 0; b < std::min(losses.size(), buckets_.size()); ++b) {
    if (losses[b].error >= 0) buckets_[b].errors.add(losses[b].error);
    if (losses[b].residual >= 0) buckets_[b].residuals.add(losses[b].residual);
    core::Excess excess;
    if (losses[b].error >= 0 && is_over(b, excess)) consider(b, excess);
    if (losses[b].residual >= 0 && is_committed_ && runs_away(buckets_[b], excess)) consider(b, excess);
  }
  return worst;
}

bool ErrorBudget::is_over(size_t index, core::Excess& excess) {
  const Window<kSteps>& errors = buckets_[index].errors;
  if (!is_committed_) {
    if (!budget_ || errors.count < kTrialSteps) return false;
    excess = {.kind = core::Excess::Kind::error, .value = errors.median(), .allowed = *budget_};
    return excess.value > excess.allowed;
  }
  if (!errors.is_full()) return false;
  const double median = errors.median();
  std::optional<double>& allowed = allowed_[index];
  if (!allowed && errors.count >= kSettling + kSteps) allowed = std::max(kLeast, kMargin * median);
  if (!allowed) return false;
  excess = {.kind = core::Excess::Kind::error, .value = median, .allowed = *allowed};
  return excess.value > excess.allowed;
}

bool ErrorBudget::runs_away(Bucket& bucket, core::Excess& excess) const {
  if (!bucket.residuals.is_full()) return false;
  const double median = bucket.residuals.median();
  const bool is_old = bucket.residual_medians.is_full() && bucket.residuals.count > 2 * kGrowthSteps;
  const double doubled = is_old ? std::max(kLeastGrown, kGrowth * bucket.residual_medians.oldest()) : kMostResidual;
  bucket.residual_medians.add(median);
  excess = {.kind = core::Excess::Kind::residual, .value = median, .allowed = std::min(kMostResidual, doubled)};
  return excess.value > excess.allowed;
}

}  // namespace gradtune::tuner
