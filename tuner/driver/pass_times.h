// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// Times of gradients and parameters that a rank observed in its passes, as the driver takes them.
#pragma once

#include <cstdint>
#include <vector>

namespace gradtune::tuner {

// The time at which a gradient was ready in one backward pass.
struct ReadyTime {
  int32_t position;
  double us;  // since the first gradient of the pass
};

// The reads of a forward pass, in the form of the gradient table (engine/core/gradient_table.h).
struct ForwardTimes {
  std::vector<double> read_us;  // by position; -1: it is never read late
  double forward_us = 0, update_element_us = 0;
};

}  // namespace gradtune::tuner
