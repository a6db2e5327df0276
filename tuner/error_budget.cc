// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
#include "tuner/error_budget.h"

#include <algorithm>
#include <utility>

#include "engine/compress/compressor.h"
#include "engine/core/median.h"

namespace gradtune::tuner {

template <int N>
double ErrorBudget::Window<N>::median() const {
  std::array<double, N> copy = values;
  return core::median_in_place({copy.data(), static_cast<size_t>(std::min(count, N))});
}

void ErrorBudget::run(const core::Strategy& strategy) {
  state_.is_committed = false;
  state_.buckets.assign(strategy.buckets.size(), {});
  on_trial_.clear();
  for (const core::Bucket& bucket : strategy.buckets) on_trial_.push_back(allowed_on_trial(bucket));
}

std::optional<double> ErrorBudget::allowed_on_trial(const core::Bucket& bucket) const {
  if (limits_.budget || !limits_.names_none) return limits_.budget;
  std::optional<double> most;  // which one is sampled does not matter then
  for (const core::CompressorSpec& codec : bucket.option.codecs) {
    const core::CompressorTraits* traits = core::traits_of(codec, compress::known_traits());
    if (traits == nullptr || traits->seen_error == 0 || codec.parameter != traits->parameter_default) continue;
    most = std::max({kLeast, kFar * traits->seen_error, most.value_or(0)});
  }
  return most;
}

void ErrorBudget::commit(const core::Strategy& strategy) {
  std::vector<Committed> committed;
  for (size_t b = 0; b < strategy.buckets.size(); ++b) {
    const uint64_t bucket = core::hash({.buckets = {strategy.buckets[b]}, .order = {}});
    const bool is_known = b < state_.committed.size() && state_.committed[b].bucket == bucket;
    committed.push_back(is_known ? state_.committed[b] : Committed{.bucket = bucket, .allowed = limits_.budget});
  }
  state_ = {.buckets = std::vector<Bucket>(committed.size()), .is_committed = true, .committed = std::move(committed)};
}

core::Excess ErrorBudget::record(std::span<const core::BucketLoss> losses) {
  core::Excess worst;
  const auto consider = [&](size_t bucket, core::Excess excess) {
    excess.bucket = static_cast<int32_t>(bucket);
    if (worst.kind == core::Excess::Kind::none || excess.value * worst.allowed > worst.value * excess.allowed) {
      worst = excess;
    }
  };
  for (size_t b = 0; b < std::min(losses.size(), state_.buckets.size()); ++b) {
    if (losses[b].error >= 0) state_.buckets[b].errors.add(losses[b].error);
    if (losses[b].residual >= 0) state_.buckets[b].residuals.add(losses[b].residual);
    core::Excess excess;
    if (losses[b].error >= 0 && is_over(b, excess)) consider(b, excess);
    if (losses[b].residual >= 0 && state_.is_committed && runs_away(state_.buckets[b], excess)) consider(b, excess);
  }
  return worst;
}

bool ErrorBudget::is_over(size_t index, core::Excess& excess) {
  const Window<kSteps>& errors = state_.buckets[index].errors;
  if (!state_.is_committed) {
    if (!on_trial_[index] || errors.count < kTrialSteps) return false;
    excess = {.kind = core::Excess::Kind::error, .value = errors.median(), .allowed = *on_trial_[index]};
    return excess.value > excess.allowed;
  }
  if (!errors.is_full()) return false;
  const double median = errors.median();
  std::optional<double>& allowed = state_.committed[index].allowed;
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
