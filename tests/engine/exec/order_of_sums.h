// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// The expected results of programs of sparse schemes, in their stated order of additions.
#pragma once

#include <vector>

#include "tests/engine/exec/gradient_arenas.h"

namespace gradtune::exec {

// The average of the ranks' gradients along the dimensions of `mesh`, in fp32. Sums over as many shares as the first
// dimension has ranks come first, then sums of those along the second one, and so on. Sums begin at 0. For example:
// - mesh {4}     0 + g_0 / 4 + g_1 / 4 + g_2 / 4 + g_3 / 4
// - mesh {2, 2}  (g_0 / 4 + g_1 / 4) + (g_2 / 4 + g_3 / 4)
Values average_along(const std::vector<int>& mesh, std::vector<Values> gradients);

}  // namespace gradtune::exec
