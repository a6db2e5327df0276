// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// The phase that compares the committed strategy with the baseline on fresh pairs of blocks. It takes two pairs first,
// and more only if neither side is far behind. A committed strategy that is not worth its place is dropped. The rules
// are in tuner.h.
#pragma once

#include <cstddef>
#include <vector>

#include "tuner/confirm.h"
#include "tuner/next_phase.h"

namespace gradtune::tuner {

struct Context;

class Auditing {
 public:
  // `has_cause`: something moved; false: the audit is only due.
  Auditing(bool has_cause, Confirmation confirmation);
  // The first look at a job with a committed strategy.
  static Auditing first(const Context& context, bool has_cause);

  NextPhase begin(Context& context);
  NextPhase advance(Context& context, const std::vector<Score>& scores);
  double progress(size_t scored) const { return confirmation_.progress(scored); }

 private:
  bool has_cause_;
  Confirmation confirmation_;
};

// The time that a first look takes of a job whose baseline takes so long a step.
double first_audit_ms(double baseline_ms);

}  // namespace gradtune::tuner
