// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
#include "tuner/committed.h"

#include <utility>

#include "tuner/context.h"
#include "tuner/phase.h"

namespace gradtune::tuner {
namespace {

using What = Decision::What;

void retire_committed(Context& context) {
  context.contenders.retire(context.candidate(*context.committed));
  context.slots.set_permanent(*context.committed, false);
  context.committed.reset();
}

}  // namespace

bool is_worth(const Context& context, int32_t slot, double gain) {
  const bool is_lossier = context.slots.at(slot).fidelity > context.slots.at(context.baselines.faster).fidelity;
  return gain > (is_lossier ? kTie : 0);
}

NextPhase commit(Context& context, int32_t slot, const Claim& claim) {
  const policies::Candidate& winner = context.candidate(slot);
  Outcome& outcome = context.outcome;
  static_cast<Comparison&>(outcome) = claim;
  outcome.pairs = claim.pairs;
  outcome.committed = true;
  outcome.predicted_ms = winner.predicted_ms;
  if (!outcome.first_commit) outcome.first_commit = context.diary.step + kLead;
  context.clock.committed(claim.committed_ms, claim.baseline_ms);
  context.decide(What::commit, winner.label, claim.gain);
  if (context.committed) retire_committed(context);
  context.committed = slot;
  context.slots.set_permanent(slot, true);
  return Watching(slot);
}

NextPhase settle(Context& context, const std::string& why) {
  if (context.committed) {
    const Entry& kept = context.slots.at(*context.committed);
    context.decide(What::keep_committed, kept.candidate->label, kept.step_ms.value_or(0));
  } else {
    context.decide(What::keep_baseline, why, context.outcome.baseline_ms);
  }
  return Watching(context.kept());
}

NextPhase drop_imported(Context& context, const std::string& why) {
  context.decide(What::drop_imported, why, 0);
  if (context.slots.contains(kImportedSlot)) context.slots.release(kImportedSlot);
  return Searching();
}

NextPhase fall_back(Context& context, bool is_importing, const std::string& why) {
  return is_importing ? drop_imported(context, why) : settle(context, why);
}

void drop_committed(Context& context, double gain) {
  context.decide(What::drop_committed, context.candidate(*context.committed).label, gain);
  forget_committed(context);
}

void forget_committed(Context& context) {
  retire_committed(context);
  const double baseline_ms = context.knowledge.baseline_ms;
  context.clock.dropped(Budget::most_cost_ms(context.options.budget_share, baseline_ms));
  const Outcome before = std::exchange(context.outcome, Outcome());
  context.outcome.baseline_ms = baseline_ms;
  context.outcome.steps = before.steps;
  context.outcome.cost_ms = before.cost_ms;
  context.outcome.first_commit = before.first_commit;
}

}  // namespace gradtune::tuner
