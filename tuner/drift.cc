// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
#include "tuner/drift.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <span>
#include <utility>

#include "engine/core/median.h"
#include "engine/core/result.h"
#include "tuner/statistics.h"

namespace gradtune::tuner {
namespace {

// Odd lengths, as the upper median of an even number leans to slow steps.
constexpr std::array kBlocks = {9, 13, 17, 21};

// The standard deviation of the logarithms of medians, over all overlapping blocks of that length.
double deviation(std::span<const double> steps_ms, int block) {
  std::vector<double> medians;
  for (size_t begin = 0; begin + static_cast<size_t>(block) <= steps_ms.size(); ++begin) {
    const auto steps = steps_ms.subspan(begin, static_cast<size_t>(block));
    medians.push_back(std::log(core::median({steps.begin(), steps.end()})));
  }
  return moments(medians).sd;
}

}  // namespace

Drift::Drift(const DriftOptions& options) : options_(options) {
  core::check(options.change > 0, "a change to look for is more than none");
  core::check(options.reference_steps > 2 * kBlocks.back(), "the reference has to hold more than two blocks");
}

std::optional<Drift::Alarm> Drift::record(double step_ms) {
  core::check(step_ms > 0, "a step takes some time");
  window_ms_.push_back(step_ms);
  const bool is_full = static_cast<int>(window_ms_.size()) == options_.reference_steps;
  if (!level_) {
    if (is_full) learn(level_of(std::exchange(window_ms_, {})));
    return {};
  }
  if (is_full) {
    const Level later = level_of(std::exchange(window_ms_, {}));
    if (later.log_change <= level_->log_change / 2) {
      learn(later);
      return {};
    }
  }
  block_ms_.push_back(step_ms);
  if (static_cast<int>(block_ms_.size()) < level_->block_steps) return {};
  const double shift = std::log(core::median(std::exchange(block_ms_, {}))) - level_->log_ms;
  const bool is_slower = slower_.add(shift, level_->log_change, options_.evidence),
             is_faster = faster_.add(-shift, level_->log_change, options_.evidence);
  if (!is_slower && !is_faster) return {};
  const Side& side = is_slower ? slower_ : faster_;
  const double mean = side.shift / side.blocks;
  const Alarm alarm{.log_shift = is_slower ? mean : -mean};
  *this = Drift(options_);
  return alarm;
}

void Drift::learn(const Level& level) {
  level_ = level;
  block_ms_.clear();
  slower_ = faster_ = {};
}

Drift::Level Drift::level_of(const std::vector<double>& steps_ms) const {
  Level level{.log_ms = std::log(core::median(steps_ms)),
              .block_steps = options_.block_steps,
              .log_change = std::log1p(options_.change)};
  if (options_.block_steps > 0) return level;
  // A window holds few long blocks, which may agree by chance. Their noise is at least that of independent steps.
  const double shortest = deviation(steps_ms, kBlocks.front());
  double noise = 0;
  for (const int block : kBlocks) {
    level.block_steps = block;
    noise = std::max(deviation(steps_ms, block), shortest * std::sqrt(double{kBlocks.front()} / block));
    if (noise <= level.log_change / 4) break;
  }
  level.log_change = std::max(level.log_change, 4 * noise);
  return level;
}

// Adds up shifts beyond half a change. Each block counts for at most two changes, so that no single block is enough.
bool Drift::Side::add(double block_shift, double log_change, double evidence) {
  sum = std::max(0.0, sum + std::min(block_shift, 2 * log_change) - log_change / 2);
  if (sum == 0) {
    shift = 0;
    blocks = 0;
    return false;
  }
  shift += block_shift;
  ++blocks;
  return sum > evidence * log_change;
}

}  // namespace gradtune::tuner
