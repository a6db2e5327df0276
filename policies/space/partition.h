// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// Partitions of the gradient into buckets for planners. They are nested: each is the previous one with one bucket
// cut in two. Private to policies/. The caller decides on the options of the buckets and on their number.
#pragma once

#include <vector>

#include "engine/core/gradient_table.h"
#include "engine/core/strategy.h"

namespace gradtune::policies {

// Buckets in the order in which they become ready.
using Partition = std::vector<std::vector<core::Slice>>;

// Nested partitions, from one bucket per dtype to `most_buckets`, each with one bucket more than the previous one.
// There are fewer if no further cut is worthwhile, and none for a table without elements.
//
// The next cut is the one that lets the most gradient leave the earliest. Let a cut divide a bucket of B bytes after
// its first x. These x bytes leave earlier by r(B) - r(x), because they need not wait for the bucket's last tensor.
// They leave earlier by another c (B - x), because they need not wait until the rest is encoded. So the cut
// maximizes x (r(B) - r(x) + c (B - x)). It lies just after a large tensor that is ready early, or in the middle of
// a dominant tensor, and halves the bytes if ready times are unknown. (Under the published cost model of Espresso,
// the best of these partitions is within 2 % of the best of all 2^(L-1) for the five jobs in
// tests/policies/fusion_model.h.)
std::vector<Partition> nested_partitions(const core::GradientTable& table, int most_buckets);

}  // namespace gradtune::policies
