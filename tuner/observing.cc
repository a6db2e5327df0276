// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
#include "tuner/observing.h"

#include <algorithm>
#include <optional>

#include "tuner/blocks.h"
#include "tuner/committed.h"
#include "tuner/context.h"
#include "tuner/phase.h"
#include "tuner/ranking.h"

namespace gradtune::tuner {

using What = Decision::What;

Observing Observing::again(Context& context, Before before) {
  context.decide(What::look_again, context.candidate(context.kept()).label, context.clock.looked());
  context.slots.forget_times();
  context.knowledge.timed.clear();
  context.baselines.are_measured = false;
  const Observing next(before, context.baselines.count);
  if (context.committed) context.schedule.add(trial_block(context, *context.committed));
  next.run_baselines(context);
  return next;
}

NextPhase Observing::begin(Context&) { return {}; }

NextPhase Observing::advance(Context& context, std::vector<Score> scores) {
  std::erase_if(scores, [&](const Score& score) { return !context.baselines.contains(score.slot); });
  if (before_ == Before::opening) before_ = Before::imported;
  observation_.score(scores);
  if (!observation_.is_over()) {
    run_baselines(context);
    return {};
  }
  publish(context);
  if (context.knowledge.ranks.size == 1) return settle(context, "one rank sends nothing");
  if (before_ == Before::search) return Searching();
  if (before_ == Before::looking) return rank_again(context);
  if (context.is_over(kImportedSlot)) return drop_imported(context, "it is over its error budget");
  return start_race(context, Racing::Among::imported, {kImportedSlot});
}

// Leaves the results in the context.
void Observing::publish(Context& context) const {
  const double baseline_ms = observation_.baseline_ms();
  context.baselines.faster = observation_.baseline();
  context.baselines.rival = observation_.rival();
  context.baselines.are_measured = true;
  context.budget.learn_baseline(baseline_ms);
  context.knowledge.baseline_ms = baseline_ms;
  if (!context.committed) context.outcome.baseline_ms = baseline_ms;
  context.knowledge.compute_ms = observation_.compute_max_ms();
  context.decide(What::compute_slowest, "", observation_.compute_max_ms());
  context.decide(What::compute_fastest, "", observation_.compute_min_ms());
  context.decide(What::baseline, context.candidate(context.baselines.faster).label, baseline_ms);
}

// Nothing is switched between two blocks of the same baseline.
void Observing::run_baselines(Context& context) const {
  std::optional<int32_t> last;
  for (const int32_t slot : observation_.next_blocks()) {
    Block block = trial_block(context, slot);
    if (slot == last) block.dropped = 0;
    context.schedule.add(block);
    last = slot;
  }
}

double Observing::progress(size_t scored) const {
  const size_t blocks = std::max<size_t>(observation_.next_blocks().size(), 1);
  return std::min(1.0, static_cast<double>(scored) / static_cast<double>(blocks));
}

}  // namespace gradtune::tuner
