// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
#include "tuner/site_speed.h"

#include <algorithm>
#include <cmath>

#include "engine/core/median.h"
#include "tuner/round_length.h"

namespace gradtune::tuner {
namespace {

// The updates are above the microseconds.
constexpr int kTimeBits = 40;
constexpr uint64_t kMostUs = (uint64_t{1} << kTimeBits) - 1;
static_assert(kMostUpdatesARound < int64_t{1} << (64 - kTimeBits));

}  // namespace

uint64_t SiteSpeed::pack(const Told& told) {
  const auto updates = static_cast<uint64_t>(std::clamp<int64_t>(told.updates, 0, kMostUpdatesARound));
  const double us = told.update_ms > 0 ? std::ceil(1e3 * told.update_ms) : 0;  // NaN is no time
  return updates << kTimeBits | static_cast<uint64_t>(std::min(us, static_cast<double>(kMostUs)));
}

double SiteSpeed::weight(const Told& own, std::span<const uint64_t> all) {
  uint64_t updates = 0;
  for (const uint64_t told : all) updates += told >> kTimeBits;
  if (updates == 0) return 1;
  return static_cast<double>(own.updates) * static_cast<double>(all.size()) / static_cast<double>(updates);
}

void SiteSpeed::learn(const Told& own, std::span<const uint64_t> all) {
  uint64_t slowest_us = 0;
  bool is_known = own.update_ms > 0;
  for (const uint64_t told : all) {
    slowest_us = std::max(slowest_us, told & kMostUs);
    is_known = is_known && (told & kMostUs) > 0;
  }
  if (is_known) ratios_.push_back(static_cast<double>(slowest_us) / std::ceil(1e3 * own.update_ms));
  if (ratios_.size() == kRounds) {
    ratio_ = core::median(ratios_);
    ratios_.clear();
  }
}

int64_t SiteSpeed::updates(int64_t updates, int64_t most) const {
  if (ratio_ <= 1) return updates;
  const double fitting = ratio_ * static_cast<double>(updates);
  return fitting < static_cast<double>(most) ? static_cast<int64_t>(fitting) : std::max(updates, most);
}

}  // namespace gradtune::tuner
