// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
#include "hooks/ready_times.h"

#include <algorithm>
#include <cmath>

namespace gradtune {

void ReadyTimes::begin() {
  seen_.clear();
  end_ = {};
}

void ReadyTimes::saw(int32_t position, double own_ms) {
  if (device_) {
    seen_.push_back({position, 0, device_->current().mark()});
  } else {
    seen_.push_back({position, clock_.now_ns() - std::llround(own_ms * 1e6), {}});
  }
}

void ReadyTimes::end() {
  if (device_) end_ = device_->current().mark();
}

const std::vector<ReadyTimes::Ready>& ReadyTimes::times() {
  times_.clear();
  for (Seen& seen : seen_) {
    if (seen.mark.empty()) continue;
    const std::optional<int64_t> passed_ns = seen.mark.time_ns();
    if (!passed_ns) return times_;
    seen.ns = *passed_ns;
  }
  if (seen_.empty()) return times_;
  const int64_t first_ns = std::ranges::min(seen_, {}, &Seen::ns).ns;
  for (const Seen& seen : seen_) times_.push_back({seen.position, static_cast<double>(seen.ns - first_ns) * 1e-3});
  return times_;
}

std::optional<double> ReadyTimes::waited_ms(int64_t until_ns) const {
  if (end_.empty()) return {};
  if (!end_.passed()) return 0;  // the last gradient's bucket was there before backward was over
  const std::optional<int64_t> ended_ns = end_.time_ns();
  if (!ended_ns) return {};
  return static_cast<double>(std::max<int64_t>(until_ns - *ended_ns, 0)) * 1e-6;
}

}  // namespace gradtune
