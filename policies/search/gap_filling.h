// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// Plans that fill the time until the next gradients with blocks, after US-Byte (TPDS 2024, algorithm 1). Blocks have
// a minimum length because of latency, and may span several tensors.
#pragma once

#include "policies/search/overlap_plan.h"

namespace gradtune::policies::overlap {

struct FillingOptions {
  int32_t option = 0;
  double least_us = 0;         // of transfer, without latency: shorter messages wait for more elements if they can
  double most_us = kInfinity;  // the same for messages that leave after backward
};

Messages fill_gaps(const Job& job, const FillingOptions& options);

}  // namespace gradtune::policies::overlap
