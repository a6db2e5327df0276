// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// Partitions of the gradient into buckets, as planners vary them: nested ones, each the one before with one bucket cut
// in two. Private to policies/; leaves open which option the buckets get and how many of them pay.
#pragma once

#include <vector>

#include "engine/core/gradient_table.h"
#include "engine/core/strategy.h"

namespace gradtune::policies {

// Buckets in the order in which they become ready.
using Partition = std::vector<std::vector<core::Slice>>;

// Nested partitions, from one bucket per dtype to `most_buckets`, each with one bucket more than the one before; fewer
// when nothing is left that is worth a cut, and none for a table without elements.
//
// The next cut is the one that lets most gradient leave earliest. Cutting a bucket of B bytes after its first x
// releases these x bytes by r(B) - r(x) earlier, as they need not wait for the bucket's last tensor, and by another c
// (B - x), as they need not wait until the rest is encoded; so the cut that is largest in x (r(B) - r(x) + c (B - x))
// is made. It lies right after a large tensor that is ready early, in the middle of a tensor larger than all else, and
// is the halving of bytes where ready times are not known. (Under the published cost model of Espresso, the best of
// these partitions is within 2 % of the best of all 2^(L-1) for the five jobs in tests/policies/fusion_model.h.)
std::vector<Partition> nested_partitions(const core::GradientTable& table, int most_buckets);

}  // namespace gradtune::policies
