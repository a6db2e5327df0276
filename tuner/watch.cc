// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
#include "tuner/watch.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <utility>

#include "engine/core/median.h"
#include "tuner/budget.h"

namespace gradtune::tuner {
namespace {

constexpr DriftOptions kStepTime{};
constexpr DriftOptions kLinkTime{.change = 0.30};  // noisier, and a strategy may hide smaller changes
constexpr size_t kRecent = 10;                     // steps that decide the subject of an alarm

// Least share of the added step time by which the slowest rank's computation grew more than that of the fastest one.
constexpr double kBlame = 0.5;

constexpr double kEarned = 1.0 / 30;  // share of quiet time that may go into new looks: about 3 % with their price
constexpr int64_t kQuietSteps = 2000;
constexpr int kMostDoublings = 20;

double median_of(const std::vector<core::StepReport>& reports, double core::StepReport::*field) {
  std::vector<double> values;
  for (const core::StepReport& report : reports) values.push_back(report.*field);
  return core::median(std::move(values));
}

int32_t most_frequent_rank(const std::vector<core::StepReport>& reports) {
  std::map<int32_t, int> times;
  for (const core::StepReport& report : reports) ++times[report.slowest_rank];
  return std::max_element(times.begin(), times.end(), [](const auto& a, const auto& b) { return a.second < b.second; })
      ->first;
}

}  // namespace

Watch::Watch() : step_(kStepTime), link_(kLinkTime) {}

std::optional<Finding> Watch::record(const core::StepReport& report) {
  if (reference_.size() < static_cast<size_t>(kStepTime.reference_steps)) reference_.push_back(report);
  recent_.push_back(report);
  if (recent_.size() > kRecent) recent_.erase(recent_.begin());

  const auto step = step_.record(report.step_ms);
  const auto link = report.comm_ms > 0 ? link_.record(report.comm_ms) : std::nullopt;
  if (!step && !link) return {};
  Finding finding{.kind = step ? Finding::Kind::drift : Finding::Kind::link,
                  .log_shift = step ? step->log_shift : link->log_shift};
  if (step && step->log_shift > 0 && is_straggler()) {
    finding.kind = Finding::Kind::straggler;
    finding.rank = most_frequent_rank(recent_);
  }
  *this = Watch();
  return finding;
}

std::optional<int32_t> Watch::straggler() const {
  if (reference_.size() < static_cast<size_t>(kStepTime.reference_steps) || recent_.size() < kRecent) return {};
  const double usual_ms = median_of(reference_, &core::StepReport::step_ms);
  const double recent_ms = median_of(recent_, &core::StepReport::step_ms);
  if (recent_ms < (1 + kStepTime.change) * usual_ms || !is_straggler()) return {};
  return most_frequent_rank(recent_);
}

bool Watch::is_straggler() const {
  const auto grown_ms = [&](double core::StepReport::*field) {
    return median_of(recent_, field) - median_of(reference_, field);
  };
  const double apart_ms = grown_ms(&core::StepReport::compute_ms_max) - grown_ms(&core::StepReport::compute_ms_min);
  return apart_ms >= kBlame * grown_ms(&core::StepReport::step_ms);
}

void Cooldown::begin(double price_ms, double level_ms, double behind_ms) {
  price_ms_ = price_ms;
  level_ms_ = level_ms;
  behind_ms_ = behind_ms;
  credit_ms_ = 0;
  ++searches_;
  quiet_steps_ = 0;
  is_alarmed_ = false;
}

void Cooldown::reprice(double most_price_ms, double behind_ms) {
  if (behind_ms > 0 && behind_ms < behind_ms_) {
    price_ms_ *= behind_ms / behind_ms_;
    behind_ms_ = behind_ms;
  }
  price_ms_ = std::min(price_ms_, most_price_ms);
}

void Cooldown::dropped(double most_price_ms) {
  alarm();
  reprice(most_price_ms, behind_ms_);
  ++searches_;
}

void Cooldown::count(double took_ms) {
  const double step_ms = level_ms_ > 0 ? std::min(took_ms, kStall * level_ms_) : took_ms;
  credit_ms_ += is_alarmed_ ? std::abs(step_ms - level_ms_) : kEarned * step_ms;
  if (!is_alarmed_ && ++quiet_steps_ >= kQuietSteps) searches_ = 0;
}

bool Cooldown::is_over() const {
  return is_alarmed_ && credit_ms_ >= price_ms_ * std::exp2(std::clamp(searches_ - 1, 0, kMostDoublings));
}

}  // namespace gradtune::tuner
