// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
#include "tuner/confirming.h"

#include <utility>

#include "tuner/blocks.h"
#include "tuner/committed.h"
#include "tuner/context.h"
#include "tuner/phase.h"

namespace gradtune::tuner {

using What = Decision::What;

int steps_to_confirm(const Context& context, int pairs) {
  const Block block = tested_block(context, context.baselines.faster);
  const int blocks = pairs * (1 + static_cast<int>(context.baselines.compared().size()));
  return kLead + blocks * (block.dropped + block.scored);
}

NextPhase Confirming::begin(Context& context) {
  return origin_ == Origin::repair ? prepare_repaired(context) : start(context, pairs_);
}

// The baseline, which every rank has ready, is in force at once, on trial: residuals of other buckets stay parked
// for the strategy that is prepared meanwhile.
NextPhase Confirming::prepare_repaired(Context& context) const {
  const int32_t baseline = context.baselines.faster;
  context.slots.release_all_but({slot_});
  context.switch_to(baseline, Command::Kind::run);
  context.outcome.label = context.candidate(baseline).label;
  if (context.baselines.contains(slot_) || context.is_over(slot_)) return settle(context, repair_.why);
  context.decide(What::repair, repair_.label, repair_.bucket);
  context.prepare(slot_);
  return {};
}

// Uses fewer pairs if the budget has no room for all: a smaller gain may be missed, but a false one is as unlikely.
NextPhase Confirming::start(Context& context, int pairs) {
  const std::vector<int32_t> compared = context.baselines.compared();
  const double error = allowed_error(context.confirmations);
  const int fewest = fewest_pairs(error, compared.size());
  while (pairs > fewest && !context.budget.allows(steps_to_confirm(context, pairs))) --pairs;
  if (!context.budget.allows(steps_to_confirm(context, pairs))) {
    return settle(context, "the budget leaves no room to confirm");
  }
  context.decide(What::confirm, context.candidate(slot_).label, pairs);
  ++context.confirmations;
  const core::Rng rng = context.rng.fork("confirm").fork(std::to_string(context.diary.step));
  confirmation_.emplace(slot_, compared, pairs, error, rng);
  run_tests(context, confirmation_->next_blocks());
  return {};
}

NextPhase Confirming::advance(Context& context, const std::vector<Score>& scores) {
  if (!confirmation_) {  // a repaired strategy was prepared
    if (!context.slots.contains(slot_)) return give_up(context, "what was to take its place could not be prepared");
    return start(context, most_pairs(allowed_error(context.confirmations)));
  }
  confirmation_->score(scores);
  if (confirmation_->is_over()) return conclude(context, confirmation_->claim());
  run_tests(context, confirmation_->next_blocks());
  return {};
}

NextPhase Confirming::conclude(Context& context, const Claim& claim) const {
  const std::string& label = context.candidate(slot_).label;
  Baselines& baselines = context.baselines;
  if (claim.baseline != baselines.faster) {
    baselines.rival = std::exchange(baselines.faster, claim.baseline);
    context.budget.learn_baseline(claim.baseline_ms);
    context.knowledge.baseline_ms = claim.baseline_ms;
    context.decide(What::baseline, context.candidate(baselines.faster).label, claim.baseline_ms);
  }
  context.decide(What::baseline_took, label, claim.baseline_ms);
  context.decide(What::winner_took, label, claim.committed_ms);
  context.decide(What::gain_at_least, label, claim.gain_low);
  context.decide(What::gain_at_most, label, claim.gain_high);
  if (claim.confirmed && is_worth(context, slot_, claim.gain)) return commit(context, slot_, claim);
  if (!context.committed) {
    context.outcome.baseline_ms = claim.baseline_ms;
    context.outcome.pairs = claim.pairs;
  }
  context.decide(What::not_confirmed, label, claim.gain_low);
  return give_up(context, claim.confirmed ? "its gain is too small for what it loses" : "no gain was confirmed");
}

NextPhase Confirming::give_up(Context& context, const std::string& why) const {
  return fall_back(context, origin_ == Origin::imported, why);
}

}  // namespace gradtune::tuner
