// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// The oracle of planners: it tries every partition with every choice of options.
#pragma once

#include <span>

#include "policies/search/label_search.h"

namespace gradtune::policies::testing {

// The end of the best plan.
double best_us(const CostModel& model, std::span<const Atom> atoms);

}  // namespace gradtune::policies::testing
