// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
#include "tuner/drift.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <span>
#include <utility>

#include "engine/core/result.h"
#include "tuner/statistics.h"

namespace gradtune::tuner {
namespace {

// Odd, as the upper median of an even number leans to slow steps.
constexpr std::array kBlocks = {9, 13, 17, 21};

// Of the logarithms of the medians of all blocks of that length, overlapping.
double deviation(std::span<const double> steps_ms, int block) {
  std::vector<double> medians;
  for (size_t begin = 0; begin + static_cast<size_t>(block) <= steps_ms.size(); ++begin) {
    const auto steps = steps_ms.subspan(begin, static_cast<size_t>(block));
    medians.push_back(std::log(median({steps.begin(), steps.end()})));
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
  steps_ms_.push_back(step_ms);
  if (is_learning_) {
    if (static_cast<int>(steps_ms_.size()) == options_.reference_steps) learn();
    return {};
  }
  ++steps_;
  if (static_cast<int>(steps_ms_.size()) < block_steps_) return {};
  const double shift = std::log(median(std::exchange(steps_ms_, {}))) - reference_;
  const bool is_slower = slower_.add(shift, log_change_, options_.evidence),
             is_faster = faster_.add(-shift, log_change_, options_.evidence);
  if (!is_slower && !is_faster) return {};
  const Side& side = is_slower ? slower_ : faster_;
  const double mean = side.shift / side.blocks;
  is_learning_ = true;
  return Alarm{.log_shift = is_slower ? mean : -mean, .steps = steps_};
}

void Drift::learn() {
  log_change_ = std::log1p(options_.change);
  block_steps_ = options_.block_steps;
  if (block_steps_ == 0) fit_noise();
  reference_ = std::log(median(std::exchange(steps_ms_, {})));
  slower_ = faster_ = {};
  steps_ = 0;
  is_learning_ = false;
}

void Drift::fit_noise() {
  // A reference holds few long blocks, which may be alike by chance: their noise is at least that of independent steps.
  const double shortest = deviation(steps_ms_, kBlocks.front());
  double noise = 0;
  for (const int block : kBlocks) {
    block_steps_ = block;
    noise = std::max(deviation(steps_ms_, block), shortest * std::sqrt(double{kBlocks.front()} / block));
    if (noise <= log_change_ / 4) break;
  }
  log_change_ = std::max(log_change_, 4 * noise);
}

// What is not explained by half a change adds up, each block by no more than two changes' worth, so that no single one
// is enough.
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
