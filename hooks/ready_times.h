// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// When the gradients of one backward pass were ready. On the host that is when its hooks run. A device is asked ahead,
// and hooks run long before: there it is when the stream that backward runs on came to a mark behind the gradient. Of
// many gradients some have a mark, and those between take the time between.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "engine/core/clock.h"
#include "engine/exec/device.h"

namespace gradtune {

class ReadyTimes {
 public:
  struct Ready {
    int32_t position;
    double us;  // since the first gradient of the pass
  };

  // `device`: of gradients; null: they are the host's. The clock outlives this object.
  ReadyTimes(const core::Clock& clock, std::shared_ptr<exec::Device> device)
      : clock_(clock), device_(std::move(device)) {}

  void begin(size_t tensors);  // a pass, which so many gradients may come of
  // In the hook of that gradient. `own_ms`: what gradtune did on this thread in hooks before, which delayed backward
  // where that runs on the host.
  void saw(int32_t position, double own_ms);
  void end();  // the pass: backward has asked for all that it computes

  // Once all that was asked for in the pass has ended. Empty where the device does not tell when marks passed.
  const std::vector<Ready>& times();
  // How long this thread waited after backward had ended on the device: from then until that time of the clock.
  // Nothing for gradients of the host, or where the device does not tell.
  std::optional<double> waited_ms(int64_t until_ns) const;

 private:
  // A device knows the times of its last marks alone, some thousands, and each mark costs the host a microsecond.
  static constexpr size_t kMostMarks = 1024;

  struct Seen {
    int32_t position;
    int64_t ns;  // less what gradtune took; on a device not known before the mark has passed
    core::Fence mark;
  };
  bool read_marks();

  const core::Clock& clock_;
  const std::shared_ptr<exec::Device> device_;
  std::vector<Seen> seen_;
  size_t gradients_per_mark_ = 1;
  std::vector<Ready> times_;
  core::Fence end_;
};

}  // namespace gradtune
