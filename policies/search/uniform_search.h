// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// The best fusion by the timeline: one option for all buckets. A second place to refine from: the joint search has a
// simpler model of lanes, and what it takes for best may lie where small changes do not lead to a better fusion.
#pragma once

#include <optional>
#include <span>

#include "engine/core/strategy.h"
#include "policies/cost/cost_table.h"
#include "policies/cost/knowledge.h"

namespace gradtune::policies {

// Every option on a few buckets, and the most promising ones on nested partitions of up to 16. Small tensors are left
// alone by options that lose (forms.h). Nothing where the table of costs lacks a rate of every option.
std::optional<core::Strategy> best_uniform(const Knowledge& knowledge, const CostTable& cost,
                                           std::span<const core::Option> options);

}  // namespace gradtune::policies
