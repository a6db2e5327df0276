// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// The cost model under which published schedulers are compared: one channel on which a message of x elements takes A
// + B x, whatever its dtype, and without compression.
#pragma once

#include <memory>

#include "policies/cost/cost_model.h"
#include "policies/cost/cost_table.h"

namespace gradtune::policies {

struct LinearCost {
  double message_us = 0;  // A
  double element_us = 0;  // B
};

std::unique_ptr<CostModel> make_linear_cost(const LinearCost& cost);

// The same model as a cost table for the timeline: an all_reduce between two ranks takes as long for fp32 gradients.
CostTable linear_table(const LinearCost& cost);

}  // namespace gradtune::policies
