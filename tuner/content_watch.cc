// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
#include "tuner/content_watch.h"

#include <algorithm>
#include <cmath>
#include <utility>

namespace gradtune::tuner {
namespace {

constexpr double kChange = 0.25;  // share of the level
constexpr double kErrors = 4;
constexpr int kMostSteps = 10'000;

}  // namespace

RowShares ContentWatch::Window::mean() const { return {sum.of_one / steps, sum.of_all / steps}; }

RowShares ContentWatch::Window::error() const {
  const auto of = [&](double sum_of_all, double squares) {
    const double mean = sum_of_all / steps;
    return std::sqrt(std::max(squares / steps - mean * mean, 0.0) / steps);
  };
  return {of(sum.of_one, sum_of_squares.of_one), of(sum.of_all, sum_of_squares.of_all)};
}

bool ContentWatch::is_beyond(const Window& window) const {
  const RowShares mean = window.mean(), level = level_->mean(), error = level_->error();
  const auto differs = [](double seen, double usual, double usual_error) {
    return std::abs(seen - usual) > std::max(kChange * usual, kErrors * usual_error);
  };
  return differs(mean.of_one, level.of_one, error.of_one) || differs(mean.of_all, level.of_all, error.of_all);
}

std::optional<RowShares> ContentWatch::record(const RowShares& seen) {
  ++now_.steps;
  now_.sum.of_one += seen.of_one;
  now_.sum.of_all += seen.of_all;
  now_.sum_of_squares.of_one += seen.of_one * seen.of_one;
  now_.sum_of_squares.of_all += seen.of_all * seen.of_all;
  if (now_.steps < window_steps_) return {};
  const Window window = std::exchange(now_, {});
  if (!level_) level_ = window;
  const bool is_beyond_now = is_beyond(window);
  const bool moved = is_beyond_now && was_beyond_;
  was_beyond_ = is_beyond_now && !moved;
  if (!moved) return {};
  level_ = window;
  window_steps_ = std::min(2 * window_steps_, kMostSteps);
  return window.mean();
}

}  // namespace gradtune::tuner
