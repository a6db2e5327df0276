// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
#include "tuner/round_length.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>

#include "engine/core/median.h"

namespace gradtune::tuner {
namespace {

constexpr double kMargin = 1.1;  // of an exchange, when its delay is chosen

int64_t most_delay(int64_t updates, const UpdatesARound& allowed) { return allowed.delay.value_or(updates / 2); }

bool has_its_share(double exchange_ms, double update_ms, const RoundShape& round) {
  return waiting_ms(exchange_ms, update_ms, round.delay) <=
         kShareOfExchange * update_ms * static_cast<double>(round.updates);
}

}  // namespace

double waiting_ms(double exchange_ms, double update_ms, int64_t delay) {
  return std::max(0.0, exchange_ms - static_cast<double>(delay) * update_ms);
}

RoundShape with_least_delay(double exchange_ms, double update_ms, int64_t updates, const UpdatesARound& allowed) {
  const int64_t most = most_delay(updates, allowed);
  const double beyond_ms = exchange_ms - kShareOfExchange * update_ms * static_cast<double>(updates);
  if (allowed.delay) return {.updates = updates, .delay = most};
  if (beyond_ms <= 0) return {.updates = updates};
  const double delay = std::ceil(beyond_ms / update_ms);
  return {.updates = updates, .delay = delay < static_cast<double>(most) ? static_cast<int64_t>(delay) : most};
}

RoundShape shortest_round(double exchange_ms, double update_ms, const UpdatesARound& allowed) {
  const auto with_delay = [&](int64_t updates) { return with_least_delay(exchange_ms, update_ms, updates, allowed); };
  if (exchange_ms <= 0) return with_delay(allowed.least);
  // A chosen delay hides at most this share of the updates.
  const double hidden = allowed.delay ? 0 : 0.5,
               always_ms = waiting_ms(exchange_ms, update_ms, allowed.delay.value_or(0));
  const double updates = std::ceil(always_ms / ((kShareOfExchange + hidden) * update_ms));
  if (!(updates < static_cast<double>(allowed.most))) return with_delay(allowed.most);
  int64_t enough = std::max(allowed.least, static_cast<int64_t>(updates));
  // Half of an odd number is rounded down, so one more update may be needed.
  while (!allowed.delay && enough < allowed.most &&
         !has_its_share(exchange_ms, update_ms, {.updates = enough, .delay = most_delay(enough, allowed)})) {
    ++enough;
  }
  return with_delay(enough);
}

RoundLength::RoundLength(const UpdatesARound& allowed, const RoundShape& first)
    : allowed_(allowed), round_{.updates = std::clamp(first.updates, allowed.least, allowed.most)} {
  round_.delay = allowed.delay ? *allowed.delay : std::clamp<int64_t>(first.delay, 0, round_.updates / 2);
  exchange_ms_.reserve(kRounds);
  update_ms_.reserve(kRounds);
}

// A delay that is too short is changed at once, and so is one that is not needed.
bool RoundLength::is_near(const RoundShape& wanted) const {
  if (5 * std::abs(wanted.updates - round_.updates) > round_.updates) return false;
  if (wanted.delay == 0 && round_.delay > 0) return false;
  return wanted.delay <= round_.delay && 5 * (round_.delay - wanted.delay) <= round_.updates;
}

std::optional<RoundLength::Times> RoundLength::learn(const core::StepReport& report) {
  if (report.excluded || !report.finite) return std::nullopt;
  exchange_ms_.push_back(report.step_ms - report.compute_ms_max);
  update_ms_.push_back(report.compute_ms_max);
  if (exchange_ms_.size() < kRounds) return std::nullopt;
  const Times times{.exchange_ms = core::median(exchange_ms_), .update_ms = core::median(update_ms_)};
  exchange_ms_.clear();
  update_ms_.clear();
  if (is_near(shortest_round(times.exchange_ms, times.update_ms, allowed_))) return std::nullopt;
  const RoundShape before = round_;
  round_ = shortest_round((allowed_.delay ? 1 : kMargin) * times.exchange_ms, times.update_ms, allowed_);
  return round_ == before ? std::nullopt : std::optional(times);
}

}  // namespace gradtune::tuner
