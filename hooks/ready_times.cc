// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
#include "hooks/ready_times.h"

#include <algorithm>
#include <cmath>

namespace gradtune {

void ReadyTimes::begin(size_t tensors) {
  seen_.clear();
  gradients_per_mark_ = std::max<size_t>((tensors + kMostMarks - 1) / kMostMarks, 1);
  end_ = {};
}

void ReadyTimes::saw(int32_t position, double own_ms) {
  if (device_) {
    const bool has_mark = seen_.size() % gradients_per_mark_ == 0;
    seen_.push_back({position, 0, has_mark ? device_->current().mark() : core::Fence()});
  } else {
    seen_.push_back({position, clock_.now_ns() - std::llround(own_ms * 1e6), {}});
  }
}

void ReadyTimes::end() {
  if (device_) end_ = device_->current().mark();
}

// Returns true if all marks have passed and the device gives their times.
bool ReadyTimes::read_marks() {
  for (size_t i = 0; i < seen_.size(); i += gradients_per_mark_) {
    const std::optional<int64_t> passed_ns = seen_[i].mark.time_ns();
    if (!passed_ns) return false;
    const size_t before = i == 0 ? 0 : i - gradients_per_mark_;
    for (size_t j = before + 1; j < i; ++j) {
      seen_[j].ns = seen_[before].ns + (*passed_ns - seen_[before].ns) * static_cast<int64_t>(j - before) /
                                           static_cast<int64_t>(gradients_per_mark_);
    }
    seen_[i].ns = *passed_ns;
  }
  const size_t last = (seen_.size() - 1) / gradients_per_mark_ * gradients_per_mark_;
  for (size_t j = last + 1; j < seen_.size(); ++j) seen_[j].ns = seen_[last].ns;  // no mark follows them
  return true;
}

const std::vector<tuner::ReadyTime>& ReadyTimes::times() {
  times_.clear();
  if (seen_.empty() || (device_ && !read_marks())) return times_;
  const int64_t first_ns = std::ranges::min(seen_, {}, &Seen::ns).ns;
  for (const Seen& seen : seen_) times_.push_back({seen.position, static_cast<double>(seen.ns - first_ns) * 1e-3});
  return times_;
}

std::optional<double> ReadyTimes::waited_ms(int64_t until_ns) const {
  if (end_.empty()) return {};
  if (!end_.passed()) return 0;  // the last gradient's bucket arrived before backward ended
  const std::optional<int64_t> ended_ns = end_.time_ns();
  if (!ended_ns) return {};
  return static_cast<double>(std::max<int64_t>(until_ns - *ended_ns, 0)) * 1e-6;
}

}  // namespace gradtune
