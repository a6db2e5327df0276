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

// An exchange of a part of the model may take as long as its share of the round, because then one is under way at most.
// An exchange of the whole model may not, as the updates beside it are all based on older parameters.
int64_t most_delay(int64_t updates, const UpdatesARound& allowed) {
  return allowed.delay.value_or(updates / std::max<int64_t>(2, allowed.fragments));
}

bool has_its_share(const ExchangeTimes& times, const RoundShape& round) {
  return static_cast<double>(round.fragments) * times.waiting_ms(round.delay) <=
         kShareOfExchange * times.update_ms * static_cast<double>(round.updates);
}

// The smallest whole number that is not below `value`; `most` if that is above it, or if `value` is no number.
int64_t rounded_up(double value, int64_t most) {
  const double up = std::ceil(value);
  return up < static_cast<double>(most) ? std::max<int64_t>(0, static_cast<int64_t>(up)) : most;
}

}  // namespace

ExchangeTimes exchange_times(const core::StepReport& report) {
  return {.exchange_ms = std::max(0.0, report.step_ms - report.compute_ms_max),
          .update_ms = report.compute_ms_max,
          .work_ms = report.work_ms};
}

double ExchangeTimes::waiting_ms(int64_t delay) const {
  const double work = std::min(work_ms, std::max(0.0, exchange_ms));
  return work + std::max(0.0, exchange_ms - work - static_cast<double>(delay) * update_ms);
}

double ExchangeTimes::share_of_waiting(const RoundShape& round) const {
  return static_cast<double>(round.fragments) * waiting_ms(round.delay) /
         (static_cast<double>(round.updates) * update_ms);
}

RoundShape with_least_delay(const ExchangeTimes& times, int64_t updates, const UpdatesARound& allowed) {
  RoundShape round{.updates = updates, .delay = most_delay(updates, allowed), .fragments = allowed.fragments};
  if (allowed.delay) return round;
  const auto of_each = static_cast<double>(updates) / static_cast<double>(allowed.fragments);
  const double hidden_ms = times.exchange_ms - std::max(kShareOfExchange * times.update_ms * of_each, times.work_ms);
  round.delay = hidden_ms > 0 ? rounded_up(hidden_ms / times.update_ms, round.delay) : 0;
  return round;
}

RoundShape shortest_round(const ExchangeTimes& times, const UpdatesARound& allowed) {
  if (times.exchange_ms <= 0) return with_least_delay(times, allowed.least, allowed);
  // Ranks always wait for `always_ms`. A chosen delay hides at most half of the updates, or all with several fragments.
  const auto exchanges = static_cast<double>(allowed.fragments);
  const double always_ms = exchanges * times.waiting_ms(allowed.delay.value_or(kMostUpdatesARound));
  const double hidden = allowed.delay ? 0 : allowed.fragments == 1 ? 0.5 : 1;
  const double all_ms = allowed.delay ? always_ms : exchanges * times.exchange_ms;
  int64_t updates = std::max({allowed.least, rounded_up(always_ms / (kShareOfExchange * times.update_ms), allowed.most),
                              rounded_up(all_ms / ((kShareOfExchange + hidden) * times.update_ms), allowed.most)});
  // The largest delay is rounded down, so a few more updates may be needed.
  const auto longest = [&] { return RoundShape{updates, most_delay(updates, allowed), allowed.fragments}; };
  while (updates < allowed.most && !has_its_share(times, longest())) ++updates;
  return with_least_delay(times, updates, allowed);
}

RoundLength::RoundLength(const UpdatesARound& allowed, const RoundShape& first)
    : allowed_(allowed),
      round_{.updates = std::clamp(first.updates, allowed.least, allowed.most), .fragments = allowed.fragments} {
  const int64_t most = most_delay(round_.updates, allowed);
  round_.delay = allowed.delay ? most : std::clamp<int64_t>(first.delay, 0, most);
  for (auto* times : {&exchange_ms_, &update_ms_, &work_ms_}) times->reserve(kRounds);
}

// A delay that is too short is changed at once, and so is one that is not needed.
bool RoundLength::is_near(const RoundShape& wanted) const {
  if (5 * std::abs(wanted.updates - round_.updates) > round_.updates) return false;
  if (wanted.delay == 0 && round_.delay > 0) return false;
  return wanted.delay <= round_.delay && 5 * (round_.delay - wanted.delay) <= round_.updates;
}

std::optional<ExchangeTimes> RoundLength::learn(const core::StepReport& of_step) {
  if (of_step.excluded || !of_step.finite) return std::nullopt;
  ExchangeTimes of_one = exchange_times(of_step);
  of_one.exchange_ms /= static_cast<double>(allowed_.fragments);
  of_one.work_ms /= static_cast<double>(allowed_.fragments);
  return learn(of_one);
}

std::optional<ExchangeTimes> RoundLength::learn(const ExchangeTimes& of_round) {
  exchange_ms_.push_back(of_round.exchange_ms);
  update_ms_.push_back(of_round.update_ms);
  work_ms_.push_back(of_round.work_ms);
  if (exchange_ms_.size() < kRounds) return std::nullopt;
  const ExchangeTimes times{.exchange_ms = core::median(exchange_ms_),
                            .update_ms = core::median(update_ms_),
                            .work_ms = core::median(work_ms_)};
  for (auto* of_rounds : {&exchange_ms_, &update_ms_, &work_ms_}) of_rounds->clear();
  if (is_near(shortest_round(times, allowed_))) return std::nullopt;
  const double margin = allowed_.delay ? 1 : kMargin;
  const RoundShape before = round_;
  round_ = shortest_round({margin * times.exchange_ms, times.update_ms, margin * times.work_ms}, allowed_);
  return round_ == before ? std::nullopt : std::optional(times);
}

}  // namespace gradtune::tuner
