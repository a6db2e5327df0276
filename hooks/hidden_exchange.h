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
  // The program goes on now, and waits later; of several calls of begin() the last one counts. `times` are the
  // executor's so far.
  void begin(int64_t now_ns, const exec::StepTimes& times) { began_ = {now_ns, times.exchange_ms()}; }
  void end(int64_t now_ns, const exec::StepTimes& times) { ended_ = {now_ns, times.exchange_ms()}; }
  // From begin() to the end of the last operation that began before end(), without the training thread's own part of
  // the exchange meanwhile. `operations` are the times of all operations, when all are done.
  double ms(const std::vector<exec::OpTime>& operations) const {
    int64_t last_ns = began_.ns;
    for (const exec::OpTime& each : operations) {
      if (each.begin_ns < ended_.ns) last_ns = std::max(last_ns, std::min(each.end_ns, ended_.ns));
    }
    return std::max(0.0, static_cast<double>(last_ns - began_.ns) * 1e-6 - (ended_.exchange_ms - began_.exchange_ms));
  }

 private:
  struct Moment {
    int64_t ns = 0;
    double exchange_ms = 0;  // that the training thread spent on the exchange until then
  } began_, ended_;
};

}  // namespace gradtune
