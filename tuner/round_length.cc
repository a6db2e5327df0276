// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
#include "tuner/round_length.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>

#include "engine/core/median.h"

namespace gradtune::tuner {

int64_t shortest_round(double exchange_ms, double update_ms, const UpdatesARound& allowed) {
  if (exchange_ms <= 0) return allowed.least;
  const double updates = std::ceil(exchange_ms / (kShareOfExchange * update_ms));
  if (!(updates < static_cast<double>(allowed.most))) return allowed.most;
  return std::max(allowed.least, static_cast<int64_t>(updates));
}

RoundLength::RoundLength(const UpdatesARound& allowed, int64_t first)
    : allowed_(allowed), updates_(std::clamp(first, allowed.least, allowed.most)) {
  exchange_ms_.reserve(kRounds);
  update_ms_.reserve(kRounds);
}

std::optional<RoundLength::Times> RoundLength::learn(const core::StepReport& report) {
  if (report.excluded || !report.finite) return std::nullopt;
  exchange_ms_.push_back(report.step_ms - report.compute_ms_max);
  update_ms_.push_back(report.compute_ms_max);
  if (exchange_ms_.size() < kRounds) return std::nullopt;
  const Times times{.exchange_ms = core::median(exchange_ms_), .update_ms = core::median(update_ms_)};
  exchange_ms_.clear();
  update_ms_.clear();
  const int64_t wanted = shortest_round(times.exchange_ms, times.update_ms, allowed_);
  if (5 * std::abs(wanted - updates_) <= updates_) return std::nullopt;
  updates_ = wanted;
  return times;
}

}  // namespace gradtune::tuner
