// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// Plans that fill the time until the next gradients with blocks, after US-Byte (TPDS 2024, algorithm 1): with a least
// length that latency asks for, over several tensors.
#pragma once

#include "policies/search/overlap_plan.h"

namespace gradtune::policies::overlap {

struct FillingOptions {
  int32_t option = 0;
  double least_us = 0;         // of transfer, latency not counted: messages with less wait for more, where they can
  double most_us = kInfinity;  // ... of messages that leave behind backward
};

Messages fill_gaps(const Job& job, const FillingOptions& options);

}  // namespace gradtune::policies::overlap
