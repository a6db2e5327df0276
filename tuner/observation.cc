// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
#include "tuner/observation.h"

#include <algorithm>

#include "engine/core/median.h"

namespace gradtune::tuner {
namespace {

// Load alone seldom makes both blocks of one baseline take that much longer than both of the other: it would have to
// come twice and to go in between.
constexpr double kClear = 1.15;
constexpr int32_t kOrder[] = {1, 0, 0, 1};

}  // namespace

std::vector<int32_t> Observation::next_blocks() const {
  if (baselines_ == 1) return blocks_ms_[0].empty() ? std::vector<int32_t>{0} : std::vector<int32_t>{};
  std::vector<int32_t> slots;
  std::vector<size_t> seen = {blocks_ms_[0].size(), blocks_ms_[1].size()};
  for (const int32_t slot : kOrder) {
    size_t& left = seen[static_cast<size_t>(slot)];
    if (left == 0) {
      slots.push_back(slot);
    } else {
      --left;
    }
  }
  return slots;
}

void Observation::record(const core::StepReport& report) {
  if (report.excluded || !report.finite) return;
  compute_max_ms_.push_back(report.compute_ms_max);
  compute_min_ms_.push_back(report.compute_ms_min);
}

void Observation::score(const std::vector<Score>& blocks) {
  for (const Score& block : blocks) {
    if (block.step_ms) blocks_ms_[static_cast<size_t>(block.slot)].push_back(*block.step_ms);
  }
}

bool Observation::is_over() const { return next_blocks().empty(); }

double Observation::step_ms(int32_t slot) const { return core::median(blocks_ms_[static_cast<size_t>(slot)]); }

int32_t Observation::baseline() const { return baselines_ > 1 && step_ms(1) < step_ms(0) ? 1 : 0; }

std::optional<int32_t> Observation::rival() const {
  if (baselines_ == 1) return {};
  const int32_t other = 1 - baseline();
  const double fastest = std::ranges::min(blocks_ms_[static_cast<size_t>(other)]);
  const double slowest = std::ranges::max(blocks_ms_[static_cast<size_t>(baseline())]);
  return fastest < kClear * slowest ? std::optional(other) : std::nullopt;
}

double Observation::compute_max_ms() const { return compute_max_ms_.empty() ? 0 : core::median(compute_max_ms_); }
double Observation::compute_min_ms() const { return compute_min_ms_.empty() ? 0 : core::median(compute_min_ms_); }

}  // namespace gradtune::tuner
