// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// The oracle of planners: every partition with every choice of options, by trying them.
#pragma once

#include <span>

#include "policies/search/label_search.h"

namespace gradtune::policies::testing {

// When the best plan ends.
double best_us(const CostModel& model, std::span<const Atom> atoms);

}  // namespace gradtune::policies::testing
