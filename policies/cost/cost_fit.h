// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// Rates from what a job's own steps took and sent (link_fit.h, line_fit.h). Time of rank 0 is what is fitted: where it
// often waits for a slower rank in a collective, that counts as the collective's. A collective of payloads that need
// not be full counts with the bytes that were sent, and their share of the payloads becomes the codec's `use`.
//
// What was never seen has a prior, which is cheap on purpose: a planner that takes it at its word tries what it does
// not know, and then it is known.
#pragma once

#include <optional>
#include <span>
#include <vector>

#include "policies/cost/cost_table.h"
#include "policies/cost/knowledge.h"
#include "policies/cost/line_fit.h"

namespace gradtune::policies {

struct FittedCost {
  CostTable table;
  std::vector<RateQuality> collectives;  // in the order of the table's rows
  std::vector<RateQuality> codecs;       // of the half, encode or decode, that is known less well
};

// The strategies are of that table. A rate whose samples are of one size only is taken for proportional to the size,
// beyond the prior's fixed part where there is one. What was slow because others needed the cores too counts as if it
// had had them for itself. Of what was not seen the prior's rates are taken; without any a compressor is left out
// unless both halves of it were seen.
FittedCost fit_cost(std::span<const TimedRun> timed, const core::GradientTable& table, const core::Ranks& ranks,
                    core::TraitsTable known, const CostTable& prior = {}, const Machine& machine = {});

// Rates for all collectives that move whole gradients or payloads over all ranks, a byte on the link as fast as that of
// an all_reduce, or where none was seen of another collective over all ranks, and no slower than over an idle link;
// where there are levels, for those between nodes, as fast, and for those of gradients in a node, faster; and for the
// compressors at both places, as fast as the host's memory: encoding reads each element once, decoding writes it once.
// What was measured over idle links is taken of messages and inside nodes, and what is known of the payloads' use.
// Copies between a device and the host that were not seen are as fast as a bus of the usual kind. Nothing where no
// collective over all ranks was seen.
std::optional<CostTable> prior_cost(const CostTable& seen, const std::vector<core::CompressorSpec>& codecs,
                                    const IdleLinks& idle_links = {}, std::span<const core::CodecUse> uses = {});

// The table with each rate, of those that were fitted, scaled by 1 + `errors` standard errors, at least by a half.
CostTable shifted(const FittedCost& fitted, double errors);

}  // namespace gradtune::policies
