// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// Turns reports into commands: decides what runs next, and for how long.
#include "tuner/tuner_core.h"

#include <algorithm>
#include <limits>
#include <utility>

namespace gradtune::tuner {
namespace {

constexpr int kScored = 3;        // steps of a block outside of races, after one that is dropped
constexpr int kPatience = 5;      // extra steps of a candidate's block if some cannot be scored
constexpr int kImported = 20;     // steps of an imported strategy before it is tested
constexpr double kAborted = 2.0;  // factor over the fastest known strategy: slower blocks are cut short

// A much slower baseline gets shorter blocks: the gap is clear with fewer steps, and its steps make tuning slow.
int baseline_block_steps(double times_slower) {
  if (times_slower > 3) return 3;
  return times_slower > 1.5 ? 4 : kBlockSteps;
}

}  // namespace

Tuner::Core::Core(const TunerOptions& options, MakePolicy make_policy, policies::Knowledge knowledge,
                  const std::vector<policies::Candidate>& baselines, const std::optional<policies::Candidate>& imported)
    : options_(options),
      make_policy_(std::move(make_policy)),
      policy_(make_policy_()),
      knowledge_(std::move(knowledge)),
      baselines_(static_cast<int32_t>(baselines.size())),
      rng_(options.seed),
      slots_(knowledge_.traits),
      schedule_(kLead, first_slot(options, knowledge_.traits, imported)),
      budget_(options.budget_steps, options.budget_share),
      observation_(baselines_),
      bans_(baselines.back().strategy) {
  core::check(policy_ != nullptr, "a tuner needs a policy");
  core::check(baselines_ == 1 || baselines_ == 2, "there are one or two baselines");
  for (int32_t slot = 0; slot < baselines_; ++slot) {
    slots_.add_ready(slot, baselines[static_cast<size_t>(slot)], /*is_permanent=*/true);
  }
  if (imported) slots_.add_ready(kImportedSlot, *imported, /*is_permanent=*/false);
  // A user who imports a strategy gets its speed from the start. The baseline is measured later, and only then does
  // tuning begin.
  if (schedule_.slot() == kImportedSlot) {
    phase_ = Observing{Observing::Before::opening};
    schedule_.add({.slot = kImportedSlot, .scored = kImported - 1, .patience = kPatience});
  } else if (imported) {
    phase_ = Observing{Observing::Before::imported};
  }
  in_force_ = slots_.at(schedule_.slot()).candidate;
  outcome_.label = in_force_->label;
}

Action Tuner::Core::on_step(const core::StepReport& report) {
  step_ = report.step;
  nonfinite_steps_ = report.finite ? 0 : nonfinite_steps_ + 1;
  if (options_.budget_steps == 0) {
    pin_imported();
    guard(report);
    return at_once_ ? next_action() : Action{};
  }
  schedule_.record(report);
  ended_ = schedule_.take_scores();
  // The policy does not learn the speed of a trial that loses too much: others would seem too slow for a race.
  if (is_in<Searching>() && report.slot != confirmed_) guard(report);
  for (const Score& score : ended_) note(score);
  if (is_watching()) watch(report);
  if (!is_watching()) {
    if (is_tuning(report)) budget_.count(report, slots_.preparing().has_value());
    if (is_in<Observing>()) observation_.record(report);
    follow_preparation(report);
    if (!budget_.allows()) {
      settle("the budget is spent");
    } else if (schedule_.is_done() && slots_.is_idle() && !is_held()) {
      advance();
    }
  }
  guard(report);
  return next_action();
}

// Pins the imported strategy, from the first step in which it may run.
void Tuner::Core::pin_imported() {
  if (!is_importing(phase_) || schedule_.slot() == kImportedSlot || is_held()) return;
  schedule_.stop(kImportedSlot);
  outcome_.label = slots_.at(kImportedSlot).candidate->label;
  at_once_ = {.kind = Command::Kind::commit, .slot = kImportedSlot, .bytes = 0};
}

// --- what runs next --------------------------------------------------------------------------------------------------

// At most one command a step. A due switch goes first, since only then blocks are as long as planned.
Action Tuner::Core::next_action() {
  if (at_once_) {
    const Command command = *std::exchange(at_once_, {});
    return put_in_force(command.kind, command.slot);
  }
  if (!is_watching()) schedule_.rest(resting_slot());
  if (const auto slot = schedule_.next_slot()) return put_in_force(Command::Kind::run, *slot);
  // Prepares the successor of the strategy that was just switched to, so that the preparation falls into the step
  // that is dropped after the switch.
  if (!slots_.preparing() && slots_.next_to_prepare() && !schedule_.is_waiting() && !is_held()) {
    const Command command = slots_.start_preparing();
    return {command, slots_.at(command.slot).candidate};
  }
  if (is_trial_ahead()) return {};  // the strategy in force is uncertain
  return {slots_.next_drop(schedule_.slot()).value_or(Command{}), nullptr};
}

Action Tuner::Core::put_in_force(Command::Kind kind, int32_t slot) {
  in_force_before_ = std::exchange(in_force_, slots_.at(slot).candidate);
  return {{.kind = kind, .slot = slot, .bytes = 0}, nullptr};
}

// A trial is put on the schedule while its preparation is still under way. Ranks that finish it in time run it a
// step sooner. If one of them does not, the switch takes place on none.
void Tuner::Core::follow_preparation(const core::StepReport& report) {
  const auto prepared = slots_.follow(report);
  if (prepared && !prepared->entry.is_ready) {
    const std::string why = std::exchange(failure_, {});
    decide(What::prepare_failed, prepared->entry.candidate->label + (why.empty() ? "" : ": " + why), 0);
    why_not_prepared_ = why;
  }
  auto* searching = std::get_if<Searching>(&phase_);
  if (searching == nullptr || (!prepared && !slots_.preparing())) return;
  const int32_t slot = prepared ? prepared->slot : *slots_.preparing();
  const bool is_ready = prepared && prepared->entry.is_ready;
  const bool is_hopeful = !prepared && slots_.waited() == 1;
  if (is_hopeful || (is_ready && !searching->is_trial_ahead)) schedule_.add(trial_block(slot));
  if (searching->is_trial_ahead && !is_ready && schedule_.take_back(slot)) in_force_ = in_force_before_;
  searching->is_trial_ahead = is_hopeful;
}

bool Tuner::Core::is_trial_ahead() const {
  const auto* searching = std::get_if<Searching>(&phase_);
  return searching != nullptr && searching->is_trial_ahead;
}

// Tells if that step counts as tuning. Steps of the strategy that would run anyway do not count, however slow it
// became. Otherwise a search after an audit would begin with its budget spent.
bool Tuner::Core::is_tuning(const core::StepReport& report) const {
  const bool is_in_force_anyway = is_in<Auditing>() && report.slot == confirmed_;
  const auto* observing = std::get_if<Observing>(&phase_);
  const bool is_opening = observing != nullptr && observing->before == Observing::Before::opening;
  return !is_held() && !is_opening && !is_in_force_anyway;
}

// The next strategy in line may not run yet.
bool Tuner::Core::is_held() const {
  const auto next = is_importing(phase_) ? kImportedSlot : slots_.next_to_prepare();
  return next && step_ + kLead < earliest_step_of(*next);
}

int Tuner::Core::earliest_step_of(int32_t slot) const {
  return earliest_step(options_, knowledge_.traits, slots_.at(slot).candidate->strategy);
}

// Strategies that may run now go first, in the order in which they were asked for.
void Tuner::Core::prepare(int32_t slot) {
  slots_.prepare(slot, std::max<int64_t>(step_ + kLead, earliest_step_of(slot)));
}

// The strategy that runs while nothing is measured: the fastest one known. During a long wait only a confirmed
// strategy runs.
int32_t Tuner::Core::resting_slot() const {
  const int32_t safe = confirmed_.value_or(is_over(kImportedSlot) ? sound_baseline() : baseline_);
  if (is_held()) return safe;
  return is_importing(phase_) && !is_over(kImportedSlot) ? kImportedSlot : slots_.fastest().value_or(safe);
}

double Tuner::Core::fastest_ms() const {
  const auto fastest = slots_.fastest();
  return fastest ? *slots_.at(*fastest).step_ms : std::numeric_limits<double>::infinity();
}

Block Tuner::Core::trial_block(int32_t slot) const {
  if (slot < baselines_) return {.slot = slot, .scored = kScored};
  return {.slot = slot, .scored = kScored, .limit_ms = kAborted * fastest_ms(), .patience = kPatience};
}

Block Tuner::Core::paired_block(int32_t slot) const {
  if (slot == baseline_) return {.slot = slot, .scored = tested_block(slot).scored};
  return {.slot = slot, .scored = kBlockSteps - 1, .limit_ms = kAborted * fastest_ms(), .patience = kPatience};
}

// All blocks have one length: with skewed noise a shorter one would look slower.
Block Tuner::Core::tested_block(int32_t slot) const {
  const double times_slower = slots_.at(baseline_).step_ms.value_or(0) / fastest_ms();
  return {.slot = slot, .scored = baseline_block_steps(times_slower) - 1, .patience = kPatience};
}

void Tuner::Core::run(const std::vector<int32_t>& slots, Block (Core::*block)(int32_t) const) {
  for (int32_t slot : slots) schedule_.add((this->*block)(slot));
}

const policies::Candidate& Tuner::Core::chosen() const {
  const bool is_imported = is_importing(phase_) && !is_held() && !is_over(kImportedSlot);
  const int32_t otherwise = is_imported ? kImportedSlot : baseline_;
  const bool is_pinned = options_.budget_steps == 0;
  return is_pinned ? *in_force_ : *slots_.at(confirmed_.value_or(otherwise)).candidate;
}

double Tuner::Core::progress() const {
  const auto scored = static_cast<double>(scores_.size());
  if (is_in<Observing>()) {
    return std::min(1.0, scored / static_cast<double>(std::max<size_t>(observation_.next_blocks().size(), 1)));
  }
  if (is_in<Searching>()) return scored / (scored + 1);
  if (const auto* racing = std::get_if<Racing>(&phase_)) return racing->race ? racing->race->progress() : 0;
  if (const auto* confirming = std::get_if<Confirming>(&phase_)) {
    return confirming->confirmation ? confirming->confirmation->progress(scores_.size()) : 0;
  }
  if (const auto* auditing = std::get_if<Auditing>(&phase_)) return auditing->confirmation.progress(scores_.size());
  return 1;
}

void Tuner::Core::decide(What what, std::string label, double value) {
  decisions_.push_back({step_, stage(), what, std::move(label), value});
}

}  // namespace gradtune::tuner
