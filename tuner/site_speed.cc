// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
#include "tuner/site_speed.h"

#include <algorithm>

#include "engine/core/median.h"

namespace gradtune::tuner {

void SiteSpeed::learn(double own_ms, double slowest_ms) {
  if (!(own_ms > 0) || !(slowest_ms > 0)) return;
  ratios_.push_back(slowest_ms / own_ms);
  if (ratios_.size() < kRounds) return;
  ratio_ = core::median(ratios_);
  ratios_.clear();
}

int64_t SiteSpeed::updates(int64_t updates, int64_t most) const {
  if (ratio_ <= 1) return updates;
  const double fitting = ratio_ * static_cast<double>(updates);
  return fitting < static_cast<double>(most) ? static_cast<int64_t>(fitting) : std::max(updates, most);
}

}  // namespace gradtune::tuner
