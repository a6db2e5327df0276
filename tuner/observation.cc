// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
#include "tuner/observation.h"

#include <algorithm>

#include "tuner/statistics.h"

namespace gradtune::tuner {
namespace {

constexpr double kClose = 1.10;

}  // namespace

// Blocks that each baseline needs.
size_t Observation::wanted() const {
  const bool have_one_each =
      std::none_of(blocks_ms_.begin(), blocks_ms_.end(), [](const auto& ms) { return ms.empty(); });
  if (baselines_ < 2 || !have_one_each) return 1;
  const auto [faster, slower] = std::minmax({step_ms(0), step_ms(1)});
  return slower < kClose * faster || blocks_ms_[0].size() > 1 ? 2 : 1;
}

std::vector<int32_t> Observation::next_blocks() const {
  std::vector<int32_t> slots;
  for (int32_t slot = 0; slot < baselines_; ++slot) {
    if (blocks_ms_[static_cast<size_t>(slot)].size() < wanted()) slots.push_back(slot);
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

double Observation::step_ms(int32_t slot) const { return median(blocks_ms_[static_cast<size_t>(slot)]); }

int32_t Observation::baseline() const { return baselines_ > 1 && step_ms(1) < step_ms(0) ? 1 : 0; }

double Observation::compute_max_ms() const { return compute_max_ms_.empty() ? 0 : median(compute_max_ms_); }
double Observation::compute_min_ms() const { return compute_min_ms_.empty() ? 0 : median(compute_min_ms_); }

}  // namespace gradtune::tuner
