// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// The contents of gradients: which of them come as rows (sparse gradients), the share of rows that is not zero, and
// the form in which the optimizer finds each average. Used by the training thread.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "engine/exec/executor.h"
#include "hooks/c10d/comparison.h"
#include "hooks/c10d/peers.h"
#include "hooks/gradients.h"
#include "hooks/stepper.h"
#include "tuner/driver/driver.h"

namespace gradtune {

class Contents {
 public:
  // All references must outlive this object. `driver`: on rank 0, once it is there.
  Contents(Gradients& gradients, exec::Executor& executor, Peers& peers, const std::unique_ptr<tuner::Driver>& driver)
      : gradients_(gradients), executor_(executor), peers_(peers), driver_(driver) {}

  // Called after the gradients were laid out, also again.
  void set_tensors(const Stepper& stepper);

  // Called in the first pass: all ranks learn which averages will be sparse. Their density is a guess until averages
  // exist: it takes the rank with the most rows, and assumes that ranks draw their rows independently.
  void learn();

  // The gradient of that step as it is now; notes its form.
  Gradients::Brought bring(int32_t position, int64_t step);

  // Tells, for each gradient, if this rank has it in the current pass.
  std::vector<SharedThing> describe() const;

  // Sets each gradient to its average. An average is sparse if every rank that has a gradient has a sparse one, else
  // dense. A gradient that no rank used stays undefined, as with DDP, so that momentum and weight decay do not change
  // its parameter. If a bucket keeps residuals, or drained some on any rank, its average holds parts of earlier steps
  // too. Then it is dense, or sparse if the optimizer takes nothing else.
  // `not_dense`: some gradient of some rank is not dense.
  void give(bool not_dense, int64_t step);

 private:
  double own_share(int32_t position, const Gradients::Brought& brought, int64_t step) const;
  uint8_t owed(int32_t position) const;
  void report_content(int32_t position);
  void report_sample(int32_t position, int64_t step);

  Gradients& gradients_;
  exec::Executor& executor_;
  Peers& peers_;
  const std::unique_ptr<tuner::Driver>& driver_;
  // All by position.
  std::vector<uint8_t> used_;          // Gradients::Use, of this rank, then of all
  std::vector<Stepper::Takes> takes_;  // the kinds of gradient that the optimizer accepts
  std::vector<double> own_shares_;     // on rank 0: share of rows that are not zero; negative: not sampled
};

}  // namespace gradtune
