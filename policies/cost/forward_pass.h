// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// A planner's view of a step that goes on into the next forward pass: the tensors that forward needs, and the end of
// forward under a cost model. Messages leave strictly in the order of their first collectives, each when it is
// ready. At the first read of a tensor, forward waits for all of its parts that are due then. The timeline
// (timeline.h) has the executor's own rules; with a cost table of one rate and no work on cores both give the same.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "engine/core/gradient_table.h"
#include "engine/core/strategy.h"
#include "policies/cost/cost_model.h"

namespace gradtune::policies {

// The rest of a step after an average has arrived, if nothing else has to be waited for: its tensor's update, then
// the following updates and forward. A tensor without a known reader is needed when backward returns.
struct ForwardPass {
  double whole_us = 0;           // updates and forward
  std::vector<double> after_us;  // for each tensor, if its parts are due at its first read
};
ForwardPass forward_pass(const core::GradientTable& table);

// True if a bucket with that option may be due at the next forward pass. Before any update, all ranks must know
// whether the step was finite, which they learn from the first encodes; a later encode in the same program could
// still overflow.
bool can_be_late(const core::Option& option);

// Sets read times for a job that was recorded without them: forward takes `share` of backward's time for each
// tensor, and reads tensors in the opposite order. No backward time is known before the first gradient, so its
// forward takes no time.
void assume_forward(core::GradientTable& table, double share);

// The time from the first ready gradient to the end of forward, for one order of messages after another.
class ForwardReplay {
 public:
  ForwardReplay(const CostModel& model, const core::GradientTable& table);

  // Adds a message after the others, with that option of the model.
  void send(std::span<const core::Slice> slices, size_t option, core::Due due);
  // Forgets the messages.
  double end_us();

 private:
  struct Message {
    Work work;
    double ready_us;
    double after_us;
    std::pair<int32_t, int64_t> last;  // the last of its slices: the tensor, and the slice's start in it
  };

  const CostModel& model_;
  const core::GradientTable& table_;
  const std::vector<double> ready_us_;
  const ForwardPass forward_;
  std::vector<Message> messages_;
  std::vector<size_t> by_ready_;
};

// The options must be the model's.
double forward_end_us(const CostModel& model, const core::GradientTable& table, const core::Strategy& strategy);

}  // namespace gradtune::policies
