// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// Finds the best single option for the whole model, by the timeline. It is a second start for the hill climb: the
// joint search has a simpler model of lanes, and small changes to its answer may not lead to the best strategy.
#pragma once

#include <optional>
#include <span>

#include "engine/core/strategy.h"
#include "policies/cost/cost_table.h"
#include "policies/cost/knowledge.h"

namespace gradtune::policies {

// Tries every option on a few buckets, and the most promising ones on nested partitions of up to 16. Options that
// lose skip small tensors (schemes.h). None if the cost table lacks a rate for every option.
std::optional<core::Strategy> best_uniform(const Knowledge& knowledge, const CostTable& cost,
                                           std::span<const core::Option> options);

}  // namespace gradtune::policies
