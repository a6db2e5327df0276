// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// A comparison of a strategy with the baseline. A confirmation finds it, an outcome reports it, and a strategy file
// keeps it as evidence. It leaves open how it was measured.
#pragma once

namespace gradtune::tuner {

// Step times in ms, over ranks as in core::StepReport.
struct Comparison {
  double baseline_ms = 0;
  double committed_ms = 0;  // of the strategy; 0: nothing was confirmed
  double gain = 0;          // 1 - committed / baseline
  // Bounds of the gain. The lower one decides: it is above 0 if a gain was confirmed, and too high with the
  // probability with which that confirmation may err (allowed_error() in confirm.h). The upper one is too low with a
  // probability of 2.5 %.
  double gain_low = 0, gain_high = 0;

  bool operator==(const Comparison&) const = default;
};

}  // namespace gradtune::tuner
