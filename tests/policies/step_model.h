// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// A model of a training step's time, to test policies against: one rank of many alike, with a lane for the thread that
// runs backward, one for the host's workers and one for the link. It walks a strategy's programs and its order as the
// executor does: encodes run when a bucket is ready, later work of the device in the next gradient hook or after
// backward, collectives one after the other in the strategy's order. It leaves out contention and what several
// collectives in flight would hide.
#pragma once

#include "policies/policy.h"

namespace gradtune::policies::testing {

struct StepModel {
  core::GradientTable table = {};
  core::TraitsTable traits = {};
  int world_size = 2;
  double link_bytes_per_us = 119.5;  // 1 Gbit/s, less 4.4 % of headers
  double round_us = 150;             // of one round of a collective, whatever its size
  double first_ready_us = 25'000;    // from the start of a step to the first ready gradient: data, forward, loss
  double optimizer_us = 0;
  double program_us = 60;      // of an encode or decode, whatever its size
  double host_slowdown = 1.5;  // of the host's workers against the device
  // Per element: of a copy or conversion, of adding one decoded element, of compressing.
  double copy_ns = 0.6, add_ns = 0.8, compress_ns = 1.6;

  double step_ms(const core::Strategy& strategy) const;
};

}  // namespace gradtune::policies::testing
