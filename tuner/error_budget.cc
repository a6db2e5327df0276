// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
#include "tuner/error_budget.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "engine/compress/compressor.h"
#include "engine/core/median.h"
#include "engine/core/result.h"

namespace gradtune::tuner {
namespace {

using Kind = core::Excess::Kind;

core::Excess beyond(Kind kind, double value, double allowed) {
  return value > allowed ? core::Excess{.kind = kind, .value = value, .allowed = allowed} : core::Excess{};
}

// Orders by value / allowed; a broken bucket comes first.
bool is_worse(const core::Excess& one, const core::Excess& other) {
  if (one.kind == Kind::none || other.kind == Kind::none) return other.kind == Kind::none && one.kind != Kind::none;
  if ((one.kind == Kind::broken) != (other.kind == Kind::broken)) return one.kind == Kind::broken;
  return one.value * other.allowed > other.value * one.allowed;
}

// The largest error of the bucket's compressors in whole trainings, if all of its settings were seen there.
double seen_error(const core::Bucket& bucket, core::OptimizerFamily optimizers) {
  double most = 0;  // then it does not matter which codec is sampled
  for (const core::CompressorSpec& codec : bucket.option.codecs) {
    const core::CompressorTraits* traits = core::traits_of(codec, compress::known_traits());
    if (traits == nullptr || codec.parameter != traits->parameter_default) continue;
    most = std::max(most, traits->seen_error.with(optimizers));
  }
  return most;
}

}  // namespace

double far_error(double usual) {
  // An error may exceed 1 without error feedback; then the bound is twice the error.
  return usual >= 1 ? 2 * usual : std::min(2 * usual, ErrorBudget::kAboveOne);
}

template <int N>
double ErrorBudget::Window<N>::median() const {
  std::array<double, N> copy = values;
  return core::median_in_place({copy.data(), static_cast<size_t>(std::min(count, N))});
}

template double ErrorBudget::Window<ErrorBudget::kSteps>::median() const;

void ErrorBudget::run(const core::Strategy& strategy) { start(strategy, /*is_committed=*/false); }

void ErrorBudget::commit(const core::Strategy& strategy) { start(strategy, /*is_committed=*/true); }

void ErrorBudget::start(const core::Strategy& strategy, bool is_committed) {
  for (size_t b = 0; b < state_.committed.size() && state_.is_committed; ++b) {
    state_.committed[b].errors = state_.buckets[b].errors;
  }
  state_.is_committed = is_committed;
  state_.buckets.assign(strategy.buckets.size(), {});
  if (is_committed) go_on(strategy);
  allowed_.assign(strategy.buckets.size(), limits_.budget);
  for (size_t b = 0; b < allowed_.size() && !limits_.budget && limits_.names_none; ++b) {
    const double seen = seen_error(strategy.buckets[b], limits_.optimizers);
    if (seen > 0) allowed_[b] = std::max(kLeast, far_error(seen));
  }
}

void ErrorBudget::restore(State state) {
  core::check(state.buckets.size() == allowed_.size(), "errors of a strategy that is not in force are restored");
  state_ = std::move(state);
}

void ErrorBudget::go_on(const core::Strategy& strategy) {
  const std::vector<Committed> before = std::exchange(state_.committed, {});
  for (size_t b = 0; b < strategy.buckets.size(); ++b) {
    const uint64_t hash = core::hash({.buckets = {strategy.buckets[b]}, .order = {}});
    if (b < before.size() && before[b].bucket == hash) state_.buckets[b].errors = before[b].errors;
    state_.committed.push_back({.bucket = hash, .errors = {}});
  }
}

core::Excess ErrorBudget::record(std::span<const core::BucketLoss> losses) {
  core::Excess worst;
  for (size_t b = 0; b < std::min(losses.size(), state_.buckets.size()); ++b) {
    const core::BucketLoss& loss = losses[b];
    Bucket& bucket = state_.buckets[b];
    const auto consider = [&](core::Excess excess) {
      excess.bucket = static_cast<int32_t>(b);
      if (is_worse(excess, worst)) worst = excess;
    };
    consider(beyond(Kind::broken, loss.imbalance, kBroken));
    if (loss.error >= 0) {
      bucket.errors.add(loss.error);
      consider(excess_of_error(b));
    }
    if (loss.residual >= 0) {
      bucket.ratios.add(loss.residual);
      bucket.norms.add(loss.residual * std::max(loss.gradient, 0.0));
      consider(excess_of_residual(bucket));
    }
  }
  return worst.kind == Kind::none ? core::Excess{} : worst;
}

core::Excess ErrorBudget::excess_of_error(size_t index) const {
  const Window<kSteps>& errors = state_.buckets[index].errors;
  core::Excess excess;
  const int needed = state_.is_committed ? kSteps : kFirst;
  if (allowed_[index] && errors.count >= needed) excess = beyond(Kind::error, errors.median(), *allowed_[index]);
  if (!errors.is_full() || limits_.budget) return excess;
  std::array<double, kSteps> by_age;  // the oldest first
  for (size_t i = 0; i < by_age.size(); ++i) {
    by_age[i] = errors.values[(static_cast<size_t>(errors.count) + i) % by_age.size()];
  }
  const double before = core::median_in_place({by_age.data(), kSteps - kJump});
  const double last = core::median_in_place({by_age.data() + kSteps - kJump, kJump});
  const core::Excess jump = beyond(Kind::error, last, std::max(kLeast, far_error(before)));
  return is_worse(jump, excess) ? jump : excess;
}

core::Excess ErrorBudget::excess_of_residual(Bucket& bucket) const {
  if (!bucket.ratios.is_full()) return {};
  const double ratio = bucket.ratios.median(), norm = bucket.norms.median();
  const bool has_levels = bucket.ratio_levels.is_full(), is_old = has_levels && bucket.ratios.count > 2 * kGrowthSteps;
  const double ratio_before = bucket.ratio_levels.oldest(), norm_before = bucket.norm_levels.oldest();
  if (bucket.ratios.count % kLevelSteps == 0) {
    bucket.ratio_levels.add(ratio);
    bucket.norm_levels.add(norm);
  }
  if (!state_.is_committed || (has_levels && norm <= norm_before)) return {};
  const double doubled = is_old ? std::max(kLeastGrown, kGrowth * ratio_before) : kMostResidual;
  return beyond(Kind::residual, ratio, std::min(kMostResidual, doubled));
}

}  // namespace gradtune::tuner
