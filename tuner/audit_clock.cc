// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
#include "tuner/audit_clock.h"

#include <cmath>

namespace gradtune::tuner {
namespace {

constexpr double kAuditShare = 0.003;  // share of the time that audits without an alarm may cost

}  // namespace

void AuditClock::decided(double cost_ms, double level_ms, double behind_ms, double audit_ms) {
  cooldown_.begin(cost_ms, level_ms, behind_ms);
  price_ms_ = audit_ms;
  allowance_ms_ = 0;
}

void AuditClock::audited(double cost_ms) {
  price_ms_ = cost_ms;
  allowance_ms_ = 0;
}

std::optional<Finding> AuditClock::record(const core::StepReport& report) {
  const auto finding = watch_.record(report);
  if (finding && finding->kind != Finding::Kind::straggler) cooldown_.alarm();
  return finding;
}

void AuditClock::count(double step_ms) {
  cooldown_.count(step_ms);
  allowance_ms_ += kAuditShare * step_ms;
}

std::optional<int32_t> AuditClock::take_straggler() {
  const auto rank = watch_.straggler();
  if (rank) watch_anew();
  return rank;
}

void AuditClock::compared(int32_t baseline, double committed_ms, double baseline_ms, double most_price_ms) {
  audited_baseline_ = baseline;
  audited_relation_ = std::log(committed_ms / baseline_ms);
  cooldown_.reprice(most_price_ms, baseline_ms - committed_ms);
}

void AuditClock::committed(double committed_ms, double baseline_ms) {
  searched_relation_ = audited_relation_ = std::log(committed_ms / baseline_ms);
}

}  // namespace gradtune::tuner
