// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// The time of an exchange that the program's own work hides. Gradients that are handed over may travel while the
// program goes on, until it waits for them. Plain data, without a clock.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "engine/exec/trace.h"
#include "engine/exec/training_thread.h"

namespace gradtune {

class HiddenExchange {
 public:
  // The program goes on now. `times` are the executor's so far, as below; the last call counts.
  void begin(int64_t now_ns, const exec::StepTimes& times) {
    began_ns_ = now_ns;
    own_ms_ = -busy_ms(times);
  }
  // The program waits from now on.
  void end(int64_t now_ns, const exec::StepTimes& times) {
    ended_ns_ = now_ns;
    own_ms_ += busy_ms(times);
  }
  // From begin() to the end of the last operation that began before end(), without the work of the training thread
  // meanwhile. `operations` are the times of all operations, when all are done.
  double ms(const std::vector<exec::OpTime>& operations) const {
    int64_t last_ns = began_ns_;
    for (const exec::OpTime& each : operations) {
      if (each.begin_ns < ended_ns_) last_ns = std::max(last_ns, std::min(each.end_ns, ended_ns_));
    }
    return std::max(0.0, static_cast<double>(last_ns - began_ns_) * 1e-6 - own_ms_);
  }

 private:
  static double busy_ms(const exec::StepTimes& times) { return times.encode_ms + times.decode_ms + times.wait_ms; }

  int64_t began_ns_ = 0, ended_ns_ = 0;
  double own_ms_ = 0;
};

}  // namespace gradtune
