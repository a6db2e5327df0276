// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
#include "tuner/guard.h"

#include <fmt/format.h>

#include <memory>
#include <utility>

#include "tuner/committed.h"
#include "tuner/context.h"
#include "tuner/digits.h"
#include "tuner/phase.h"

namespace gradtune::tuner {
namespace {

using What = Decision::What;
using Kind = core::Excess::Kind;

constexpr int kMostNonfinite = 32;  // consecutive steps under a lossy strategy

std::string describe(const policies::Candidate& candidate, const core::Excess& excess) {
  const auto [value, allowed] = told_apart(excess.value, excess.allowed);
  return fmt::format("{}, bucket {}: {}, allowed {}", candidate.label, excess.bucket, value, allowed);
}

// The lossy codecs of the bucket; none if there is no such bucket.
std::vector<std::string> lossy_codecs(const core::Strategy& strategy, int32_t bucket, core::TraitsTable known) {
  std::vector<std::string> lossy;
  if (bucket < 0 || static_cast<size_t>(bucket) >= strategy.buckets.size()) return lossy;
  for (const core::CompressorSpec& codec : strategy.buckets[static_cast<size_t>(bucket)].option.codecs) {
    const core::CompressorTraits* traits = core::traits_of(codec, known);
    if (traits != nullptr && traits->fidelity == core::Fidelity::lossy) lossy.push_back(core::to_string(codec));
  }
  return lossy;
}

Decision::What decision_of(Kind kind) {
  switch (kind) {
    case Kind::residual: return What::residual_runs_away;
    case Kind::broken: return What::broken;
    default: return What::over_error_budget;
  }
}

// The baseline replaces the pinned strategy for good.
NextPhase pin_baseline(Context& context) {
  const int32_t baseline = context.sound_baseline();
  const std::string& label = context.candidate(baseline).label;
  if (baseline != context.baselines.faster) context.decide(What::run_instead, label, 0);
  context.outcome.label = label;
  context.switch_to(baseline, Command::Kind::commit);
  return Observing(Observing::Before::search, context.baselines.count);  // the imported strategy is out
}

// A loss scaler skips some consecutive steps while it looks for its scale. After this many the training is lost,
// unless compression is the cause: then the baseline runs, and people are told.
NextPhase give_up_nonfinite(Context& context, int32_t slot) {
  if (!context.slots.contains(slot) || context.is_over(slot)) return {};
  if (context.slots.at(slot).fidelity != core::Fidelity::lossy) return {};
  if (!context.is_pinned() && slot != context.committed) return {};
  const std::string label = context.candidate(slot).label;
  context.bans.ban_strategy(context.slots.at(slot).hash);
  context.contenders.apply(context.bans);
  context.decide(What::not_finite, label, kMostNonfinite);
  context.decide(What::give_up, label, 0);
  if (context.is_pinned()) return pin_baseline(context);
  context.renew_budget();
  context.budget.learn_baseline(context.knowledge.baseline_ms);
  forget_committed(context);
  return settle(context, "gradients were not finite");
}

// The same strategy with that bucket sent as the baseline sends it goes on to its confirmation.
NextPhase repair(Context& context, const Phase& phase, const policies::Candidate& candidate, int32_t bucket,
                 const std::string& why) {
  const policies::Candidate repaired = sent_as_baseline(candidate, bucket, context.bans.baseline());
  if (std::holds_alternative<Watching>(phase)) {
    context.renew_budget();
    context.budget.learn_baseline(context.knowledge.baseline_ms);
  }
  if (context.committed) forget_committed(context);
  return Confirming(context.slots.slot_of(repaired), {.bucket = bucket, .label = repaired.label, .why = why});
}

// The strategy does not run again at any speed: it is not scored, does not fill idle steps, and wins no race.
void ban(Context& context, int32_t slot) {
  context.bans.ban_strategy(context.slots.at(slot).hash);
  context.schedule.give_up(slot);
  context.slots.forget_time(slot);
}

}  // namespace

// In a committed strategy the bucket is replaced. A pinned strategy stays, unless the user set a budget or it is
// broken: the user chose it, and without tuning no replacement is known. Any other strategy is removed from its
// experiment at once.
NextPhase Guard::check(Context& context, const Phase& phase, const core::StepReport& report) {
  const int32_t slot = report.slot;
  if (nonfinite_steps_ == kMostNonfinite) return give_up_nonfinite(context, slot);
  const core::Excess& excess = report.excess;
  if (excess.kind == Kind::none || !context.slots.contains(slot) || context.is_over(slot)) return {};
  const std::shared_ptr<const policies::Candidate> candidate = context.slots.at(slot).candidate;
  const core::Strategy& strategy = candidate->strategy;
  const std::vector<std::string> codecs = lossy_codecs(strategy, excess.bucket, context.knowledge.traits);
  if (codecs.empty()) return {};  // no rank can mean that
  const std::string what = describe(*candidate, excess);
  const bool is_pinned = context.is_pinned();
  if (is_pinned && !context.options.has_error_budget && excess.kind != Kind::broken) {
    if (std::exchange(has_warned_, true)) return {};
    context.decide(decision_of(excess.kind), what, excess.value);
    context.decide(What::warn, candidate->label, 0);
    return {};
  }
  ban(context, slot);
  const bool is_given_up = is_pinned || slot == context.committed;
  const auto* confirming = std::get_if<Confirming>(&phase);
  const bool is_winner = confirming != nullptr && confirming->slot() == slot;
  const bool is_repaired = is_winner && confirming->origin() == Confirming::Origin::repair;
  if (is_given_up || is_repaired) {
    context.bans.ban_codecs(codecs, strategy.buckets[static_cast<size_t>(excess.bucket)]);
  }
  context.contenders.apply(context.bans);
  context.decide(decision_of(excess.kind), what, excess.value);
  if (is_given_up) context.decide(What::give_up, candidate->label, 0);

  if (is_pinned) return pin_baseline(context);
  if (is_given_up || is_repaired) return repair(context, phase, *candidate, excess.bucket, what);
  if (!is_winner) return {};
  context.switch_to(context.sound_baseline(), Command::Kind::run);
  return fall_back(context, confirming->origin() == Confirming::Origin::imported, what);
}

}  // namespace gradtune::tuner
