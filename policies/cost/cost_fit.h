// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// Fits rates to the times and bytes of a job's own steps (link_fit.h, line_fit.h). It fits rank 0's times: if rank 0
// often waits for a slower rank in a collective, that time counts as the collective's. A collective of payloads that
// may be shorter than their buffers counts with the bytes that were sent. The share of the payloads in use becomes
// the codec's `use`.
//
// Rates that were never observed have a prior, which is optimistic on purpose: a planner that trusts it tries the
// unknown option, which then is measured.
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
  std::vector<RateQuality> codecs;       // of encode or decode, whichever is known less well
};

// The strategies must be of that table. A rate whose samples have only one size counts as proportional to the size,
// beyond the prior's fixed part if there is one. Times of work that was slowed down by other users of the cores are
// corrected as if it had the cores for itself. Rates that were not observed come from the prior. Without a prior, a
// compressor is left out unless both its encode and its decode were observed.
FittedCost fit_cost(std::span<const TimedRun> timed, const core::GradientTable& table, const core::Ranks& ranks,
                    core::TraitsTable known, const CostTable& prior = {}, const Machine& machine = {});

// A prior for rates that were not observed:
// - Collectives that move whole gradients or payloads over all ranks. A byte on the link is as fast as in the
//   observed all_reduce, or else in another collective over all ranks, and no slower than on an idle link.
// - With levels: the collectives between nodes, as fast, and those of gradients inside a node, faster.
// - The compressors at both places, as fast as the host's memory: encoding reads each element once, decoding writes
//   it once. Known uses of payloads are taken over.
// - Messages, and bytes inside nodes: as measured over idle links.
// - Copies between a device and the host: as fast as a common bus.
//
// None if no collective over all ranks was observed.
std::optional<CostTable> prior_cost(const CostTable& seen, const std::vector<core::CompressorSpec>& codecs,
                                    const IdleLinks& idle_links = {}, std::span<const core::CodecUse> uses = {});

// The table with each fitted rate scaled by 1 + `errors` standard errors, but at least by a half.
CostTable shifted(const FittedCost& fitted, double errors);

}  // namespace gradtune::policies
