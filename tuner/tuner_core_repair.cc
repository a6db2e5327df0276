// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// The answer to a bucket that exceeds its error budget, or whose residual runs away against the gradient.
#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "tuner/digits.h"
#include "tuner/tuner_core.h"

namespace gradtune::tuner {
namespace {

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

Decision::What decision_of(core::Excess::Kind kind) {
  switch (kind) {
    case core::Excess::Kind::residual: return Decision::What::residual_runs_away;
    case core::Excess::Kind::broken: return Decision::What::broken;
    default: return Decision::What::over_error_budget;
  }
}

}  // namespace

// The baseline replaces the pinned strategy for good.
void Tuner::Core::pin_baseline() {
  if (sound_baseline() != baseline_) decide(What::run_instead, slots_.at(sound_baseline()).candidate->label, 0);
  phase_ = Observing{};  // the imported strategy is out
  outcome_.label = slots_.at(sound_baseline()).candidate->label;
  at_once_ = {.kind = Command::Kind::commit, .slot = sound_baseline(), .bytes = 0};
}

// A loss scaler skips some consecutive steps while it looks for its scale. After this many the training is lost,
// unless compression is the cause: then the baseline runs, and people are told.
void Tuner::Core::give_up_nonfinite(int32_t slot) {
  const bool is_pinned = options_.budget_steps == 0;
  if (!slots_.contains(slot) || is_over(slot) || slots_.at(slot).fidelity != core::Fidelity::lossy) return;
  if (!is_pinned && slot != confirmed_) return;
  const std::string label = slots_.at(slot).candidate->label;
  bans_.ban_strategy(slots_.at(slot).hash);
  contenders_.apply(bans_);
  decide(What::not_finite, label, kMostNonfinite);
  decide(What::give_up, label, 0);
  if (is_pinned) return pin_baseline();
  budget_ = Budget(options_.budget_steps, options_.budget_share);
  budget_.learn_baseline(knowledge_.baseline_ms);
  forget_committed();
  scores_.clear();
  settle("gradients were not finite");
}

// In a committed strategy the bucket is replaced. A pinned strategy stays, unless the user set a budget or it is
// broken: the user chose it, and without tuning no replacement is known. Any other strategy is removed from its
// experiment at once.
void Tuner::Core::guard(const core::StepReport& report) {
  if (nonfinite_steps_ == kMostNonfinite) return give_up_nonfinite(report.slot);
  const core::Excess& excess = report.excess;
  if (excess.kind == core::Excess::Kind::none || !slots_.contains(report.slot) || is_over(report.slot)) return;
  const std::shared_ptr<const policies::Candidate> candidate = slots_.at(report.slot).candidate;
  const std::vector<std::string> codecs = lossy_codecs(candidate->strategy, excess.bucket, knowledge_.traits);
  if (codecs.empty()) return;  // no rank can mean that
  const bool is_pinned = options_.budget_steps == 0;
  const std::string what = describe(*candidate, excess);
  if (is_pinned && !options_.has_error_budget && excess.kind != core::Excess::Kind::broken) {
    if (std::exchange(has_warned_, true)) return;
    decide(decision_of(excess.kind), what, excess.value);
    return decide(What::warn, candidate->label, 0);
  }
  bans_.ban_strategy(slots_.at(report.slot).hash);
  // It does not run again at any speed: it is not scored, does not fill idle steps, and wins no race.
  schedule_.give_up(report.slot);
  slots_.forget_time(report.slot);
  for (Score& score : scores_) {
    if (score.slot == report.slot) score.step_ms.reset();
  }
  const auto* confirming = std::get_if<Confirming>(&phase_);
  const bool is_winner = confirming != nullptr && confirming->slot == report.slot;
  const bool is_repaired = is_winner && confirming->origin == Confirming::Origin::repair;
  if (is_pinned || is_repaired || report.slot == confirmed_) {
    bans_.ban_codecs(codecs, candidate->strategy.buckets[static_cast<size_t>(excess.bucket)]);
  }
  contenders_.apply(bans_);
  decide(decision_of(excess.kind), what, excess.value);
  if (is_pinned || report.slot == confirmed_) decide(What::give_up, candidate->label, 0);

  if (is_pinned) {
    pin_baseline();
  } else if (is_repaired || report.slot == confirmed_) {
    repair(*candidate, excess.bucket, what);
  } else if (is_winner) {
    schedule_.stop(sound_baseline());
    at_once_ = {.kind = Command::Kind::run, .slot = sound_baseline(), .bytes = 0};
    fall_back(what);
  }
}

// The baseline, which every rank has ready, is in force at once, on trial: residuals of other buckets stay parked
// for the strategy that is prepared meanwhile.
void Tuner::Core::repair(const policies::Candidate& candidate, int32_t bucket, const std::string& why) {
  const policies::Candidate repaired = sent_as_baseline(candidate, bucket, bans_.baseline());
  if (is_watching()) {
    budget_ = Budget(options_.budget_steps, options_.budget_share);
    budget_.learn_baseline(knowledge_.baseline_ms);
  }
  if (confirmed_) forget_committed();
  scores_.clear();
  const int32_t slot = slots_.slot_of(repaired);
  phase_ = Confirming{.origin = Confirming::Origin::repair, .slot = slot};
  slots_.release_all_but({slot});
  schedule_.stop(baseline_);
  at_once_ = {.kind = Command::Kind::run, .slot = baseline_, .bytes = 0};
  outcome_.label = slots_.at(baseline_).candidate->label;
  if (slot < baselines_ || is_over(slot)) return settle(why);
  decide(What::repair, repaired.label, bucket);
  prepare(slot);
}

void Tuner::Core::confirm_repaired() {
  if (!slots_.contains(std::get<Confirming>(phase_).slot))
    return fall_back("what was to take its place could not be prepared");
  const double error = allowed_error(confirmations_);
  confirm_winner(most_pairs(error), error);
}

}  // namespace gradtune::tuner
