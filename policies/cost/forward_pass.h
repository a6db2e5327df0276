// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// A step that goes on into the next forward pass, as planners see it: what forward asks of each tensor, and when it
// ends under a cost model. Messages leave strictly in the order of their first collectives, each when it is ready;
// forward waits at the first read of a tensor for all of its parts that are due then. The timeline (timeline.h) has the
// executor's own rules; a cost table of one rate and no work on cores makes the two the same.
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

// What is left of a step once an average is there, if nothing else has to be waited for: its tensor's update, and
// updates and forward after that. A tensor without a reader that is known is needed when backward returns.
struct ForwardPass {
  double whole_us = 0;           // updates and forward
  std::vector<double> after_us;  // of each tensor, if its parts are due at its first read
};
ForwardPass forward_pass(const core::GradientTable& table);

// Whether a bucket of that option may be due at the next forward pass. Before any update all ranks know whether the
// step was finite, which they learn from the first encodes; what a program encodes again could still overflow.
bool can_be_late(const core::Option& option);

// Read times of a job that was recorded without: forward takes `share` of backward's time for each tensor, and reads
// them the other way round. The first gradient has no backward before it that is known, so its forward takes no time.
void assume_forward(core::GradientTable& table, double share);

// When forward ends, from the first ready gradient on, for one order of messages after the other.
class ForwardReplay {
 public:
  ForwardReplay(const CostModel& model, const core::GradientTable& table);

  // A message behind those before it, with that option of the model.
  void send(std::span<const core::Slice> slices, size_t option, core::Due due);
  // Forgets the messages.
  double end_us();

 private:
  struct Message {
    Work work;
    double ready_us;
    double after_us;
    std::pair<int32_t, int64_t> last;  // of its slices: the tensor, and where it begins there
  };

  const CostModel& model_;
  const core::GradientTable& table_;
  const std::vector<double> ready_us_;
  const ForwardPass forward_;
  std::vector<Message> messages_;
  std::vector<size_t> by_ready_;
};

// The options are the model's.
double forward_end_us(const CostModel& model, const core::GradientTable& table, const core::Strategy& strategy);

}  // namespace gradtune::policies
