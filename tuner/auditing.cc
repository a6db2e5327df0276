// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
#include "tuner/auditing.h"

#include <algorithm>
#include <string>
#include <utility>

#include "tuner/blocks.h"
#include "tuner/committed.h"
#include "tuner/context.h"
#include "tuner/phase.h"

namespace gradtune::tuner {
namespace {

// An audit takes two pairs if one side is far behind, and otherwise enough to resolve a few percent.
constexpr int kFirstLook = 2, kAuditPairs = 6;
constexpr double kAuditError = 0.05;  // an audit claims no gain
constexpr double kFarBehind = 1.5;    // factor over the other's step

Auditing with_pairs(const Context& context, bool has_cause, int pairs) {
  const core::Rng rng = context.rng.fork("audit").fork(std::to_string(context.diary.step));
  return {has_cause, Confirmation(*context.committed, {context.baselines.faster}, pairs, kAuditError, rng)};
}

}  // namespace

double first_audit_ms(double baseline_ms) { return kFirstLook * kBlockSteps * baseline_ms; }

Auditing::Auditing(bool has_cause, Confirmation confirmation)
    : has_cause_(has_cause), confirmation_(std::move(confirmation)) {}

Auditing Auditing::first(const Context& context, bool has_cause) { return with_pairs(context, has_cause, kFirstLook); }

NextPhase Auditing::begin(Context& context) {
  run_tests(context, confirmation_.next_blocks());
  return {};
}

NextPhase Auditing::advance(Context& context, const std::vector<Score>& scores) {
  confirmation_.score(scores);
  if (!confirmation_.is_over()) {
    run_tests(context, confirmation_.next_blocks());
    return {};
  }
  const Claim claim = confirmation_.claim();
  const int32_t committed = *context.committed;
  const auto [faster_ms, slower_ms] = std::minmax(claim.baseline_ms, claim.committed_ms);
  const bool is_far_behind = slower_ms >= kFarBehind * faster_ms;
  if (claim.pairs == kFirstLook && !is_far_behind) return with_pairs(context, has_cause_, kAuditPairs);
  // Audits by the clock repeat, and in some of them a gain of a few percent seems to be gone. So the loss has to be
  // proven, in case of doubt by as many fresh pairs as a confirmation takes.
  const bool has_to_prove = !has_cause_ && !is_far_behind;
  const bool is_in_doubt = has_to_prove && claim.pairs == kAuditPairs && !is_worth(context, committed, claim.gain);
  if (is_in_doubt && context.budget.allows(most_pairs(kAuditError) * kBlockSteps)) {
    return with_pairs(context, has_cause_, most_pairs(kAuditError));
  }
  context.knowledge.baseline_ms = claim.baseline_ms;
  context.clock.compared(context.baselines.faster, claim.committed_ms, claim.baseline_ms,
                         Budget::most_cost_ms(context.options.budget_share, claim.baseline_ms));
  context.decide(Decision::What::audit, context.candidate(committed).label, claim.gain);
  if (!is_worth(context, committed, has_to_prove ? claim.gain_high : claim.gain)) drop_committed(context, claim.gain);
  return look_again(context);
}

}  // namespace gradtune::tuner
