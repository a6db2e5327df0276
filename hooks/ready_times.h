// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// The times at which the gradients of one backward pass were ready. On the host that is when their hooks run. On a
// device, work is queued ahead and hooks run long before. There it is the time at which backward's stream reached a
// mark after the gradient. If there are many gradients only some have a mark, and the others are interpolated.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "engine/core/clock.h"
#include "engine/exec/device.h"
#include "tuner/driver/pass_times.h"

namespace gradtune {

class ReadyTimes {
 public:
  // `device`: the gradients' device; null: the host. The clock must outlive this object.
  ReadyTimes(const core::Clock& clock, std::shared_ptr<exec::Device> device)
      : clock_(clock), device_(std::move(device)) {}

  void begin(size_t tensors);  // begins a pass with at most this number of gradients
  // Called in the hook of that gradient. `own_ms`: time that gradtune used on this thread in earlier hooks, which
  // delayed backward if it runs on the host.
  void saw(int32_t position, double own_ms);
  void end();  // ends the pass: backward has queued all its work

  // Call it after all work queued in the pass has ended. Empty if the device does not give the times of marks.
  const std::vector<tuner::ReadyTime>& times();
  // The time for which this thread waited after backward had ended on the device, up to `until_ns` of the clock.
  // None for gradients on the host, or if the device does not give times.
  std::optional<double> waited_ms(int64_t until_ns) const;

 private:
  // A device keeps the times of only its last few thousand marks, and each mark costs the host a microsecond.
  static constexpr size_t kMostMarks = 1024;

  struct Seen {
    int32_t position;
    int64_t ns;  // without gradtune's own time; on a device unknown until the mark has passed
    core::Fence mark;
  };
  bool read_marks();

  const core::Clock& clock_;
  const std::shared_ptr<exec::Device> device_;
  std::vector<Seen> seen_;
  size_t gradients_per_mark_ = 1;
  std::vector<tuner::ReadyTime> times_;
  core::Fence end_;
};

}  // namespace gradtune
