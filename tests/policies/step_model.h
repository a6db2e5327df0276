// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// A model of a training step's time, to test policies against. It has one rank of many equal ones, with a lane for
// the thread that runs backward, one for the host's workers and one for the link. It follows a strategy's programs
// and its order as the executor does. Encodes run when a bucket is ready. Later work of the device runs in the next
// gradient hook or after backward. Collectives run one after the other in the strategy's order. It leaves out
// contention, and the time hidden by several collectives in flight.
#pragma once

#include "policies/policy.h"

namespace gradtune::policies::testing {

struct StepModel {
  core::GradientTable table = {};
  core::TraitsTable traits = {};
  int world_size = 2;
  double link_bytes_per_us = 119.5;  // 1 Gbit/s, minus 4.4 % for headers
  double round_us = 150;             // of one round of a collective, for any size
  double first_ready_us = 25'000;    // from the start of a step to the first ready gradient: data, forward, loss
  double optimizer_us = 0;
  double program_us = 60;      // of an encode or decode, for any size
  double host_slowdown = 1.5;  // factor of the host's workers over the device
  // Costs per element: a copy or conversion, adding one decoded element, compressing.
  double copy_ns = 0.6, add_ns = 0.8, compress_ns = 1.6;

  double step_ms(const core::Strategy& strategy) const;
};

}  // namespace gradtune::policies::testing
