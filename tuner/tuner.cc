// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
#include "tuner/tuner.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "tuner/tuner_core.h"

namespace gradtune::tuner {
namespace {

constexpr int kScored = 3;        // steps of a block outside of races, after one that is dropped
constexpr int kPatience = 5;      // steps that a candidate's block is extended by when some can not be scored
constexpr int kImported = 20;     // steps of an imported strategy before it is doubted
constexpr double kAborted = 2.0;  // times the fastest strategy known: its blocks are cut short

// A much slower baseline is given shorter blocks: the gap is plain with less, and its steps are what tuning waits for.
int baseline_block_steps(double times_slower) {
  if (times_slower > 3) return 3;
  return times_slower > 1.5 ? 4 : kBlockSteps;
}

}  // namespace

double cost_share(const Outcome& outcome) {
  return outcome.baseline_ms > 0 ? outcome.cost_ms / (kShortJobSteps * outcome.baseline_ms) : 0;
}

int32_t first_slot(const TunerOptions& options, core::TraitsTable traits,
                   const std::optional<policies::Candidate>& imported) {
  if (!imported) return 0;
  const bool is_lossy = core::needed_fidelity(imported->strategy, traits) == core::Fidelity::lossy;
  return is_lossy && options.lossy_after > 0 ? 0 : kImportedSlot;
}

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
      importing_(imported.has_value()),
      observation_(baselines_) {
  core::check(policy_ != nullptr, "a tuner needs a policy");
  core::check(baselines_ == 1 || baselines_ == 2, "there are one or two baselines");
  for (int32_t slot = 0; slot < baselines_; ++slot) {
    slots_.add_ready(slot, baselines[static_cast<size_t>(slot)], /*is_permanent=*/true);
  }
  if (imported) slots_.add_ready(kImportedSlot, *imported, /*is_permanent=*/false);
  // Whoever imports a strategy gets its step time from the start; the baseline is looked at later, and only then does
  // tuning begin.
  is_opening_ = schedule_.slot() == kImportedSlot;
  if (is_opening_) schedule_.add({.slot = kImportedSlot, .scored = kImported - 1, .patience = kPatience});
  in_force_ = slots_.at(schedule_.slot()).candidate;
  outcome_.label = in_force_->label;
}

Action Tuner::Core::on_step(const core::StepReport& report) {
  step_ = report.step;
  if (options_.budget_steps == 0) {
    pin_imported();
    guard(report);
    return at_once_ ? next_action() : Action{};
  }
  schedule_.record(report);
  for (const Score& score : schedule_.take_scores()) note(score);
  if (stage_ == Stage::watch) watch(report);
  if (stage_ != Stage::watch) {
    if (is_tuning(report)) budget_.count(report, slots_.preparing().has_value());
    if (stage_ == Stage::observe) observation_.record(report);
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

// Pinned is the imported strategy, from the step on from which it may run.
void Tuner::Core::pin_imported() {
  if (!importing_ || schedule_.slot() == kImportedSlot || is_held()) return;
  schedule_.stop(kImportedSlot);
  outcome_.label = slots_.at(kImportedSlot).candidate->label;
  at_once_ = {.kind = Command::Kind::commit, .slot = kImportedSlot, .bytes = 0};
}

// --- what runs next --------------------------------------------------------------------------------------------------

// At most one command a step. A switch that is due goes first, since blocks are as long as they were planned only then.
Action Tuner::Core::next_action() {
  if (at_once_) {
    const Command command = *std::exchange(at_once_, {});
    return put_in_force(command.kind, command.slot);
  }
  if (stage_ != Stage::watch) schedule_.rest(resting_slot());
  if (const auto slot = schedule_.next_slot()) return put_in_force(Command::Kind::run, *slot);
  // Prepared is what follows the strategy that was just switched to, so that the preparation falls into the step that
  // is dropped after the switch.
  if (!slots_.preparing() && slots_.next_to_prepare() && !schedule_.is_waiting() && !is_held()) {
    const Command command = slots_.start_preparing();
    return {command, slots_.at(command.slot).candidate};
  }
  if (is_trial_ahead_) return {};  // what is in force is not sure
  return {slots_.next_drop(schedule_.slot()).value_or(Command{}), nullptr};
}

Action Tuner::Core::put_in_force(Command::Kind kind, int32_t slot) {
  in_force_before_ = std::exchange(in_force_, slots_.at(slot).candidate);
  return {{.kind = kind, .slot = slot, .bytes = 0}, nullptr};
}

// A trial is put on the schedule while its preparation is still on its way: ranks that are done with it in time run it
// a step sooner, and where one of them is not, the switch takes place on none.
void Tuner::Core::follow_preparation(const core::StepReport& report) {
  const auto prepared = slots_.follow(report);
  if (prepared && !prepared->entry.is_ready) decide(What::prepare_failed, prepared->entry.candidate->label, 0);
  if (stage_ != Stage::partition || (!prepared && !slots_.preparing())) return;
  const int32_t slot = prepared ? prepared->slot : *slots_.preparing();
  const bool is_ready = prepared && prepared->entry.is_ready;
  const bool is_hopeful = !prepared && slots_.waited() == 1;
  if (is_hopeful || (is_ready && !is_trial_ahead_)) schedule_.add(trial_block(slot));
  if (is_trial_ahead_ && !is_ready && schedule_.take_back(slot)) in_force_ = in_force_before_;
  is_trial_ahead_ = is_hopeful;
}

// Whether that step is on tuning's account. What is in force anyway is not, however slow it became, or a search after
// an audit would begin with a budget that is spent.
bool Tuner::Core::is_tuning(const core::StepReport& report) const {
  const bool is_in_force_anyway = stage_ == Stage::audit && report.slot == confirmed_;
  return !is_held() && !is_opening_ && !is_in_force_anyway;
}

// Too early for what is next in line, as it is lossy.
bool Tuner::Core::is_held() const {
  const auto next = importing_ ? kImportedSlot : slots_.next_to_prepare();
  return next && slots_.at(*next).fidelity == core::Fidelity::lossy && step_ + kLead < options_.lossy_after;
}

// What runs while nothing is measured: the fastest strategy known. A long wait is not spent with what is not confirmed
// (I4).
int32_t Tuner::Core::resting_slot() const {
  const int32_t safe = confirmed_.value_or(baseline_);
  if (is_held()) return safe;
  return importing_ && !is_over(kImportedSlot) ? kImportedSlot : slots_.fastest().value_or(safe);
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

// All of one length: where noise is skewed the shorter one would look slower.
Block Tuner::Core::tested_block(int32_t slot) const {
  const double times_slower = slots_.at(baseline_).step_ms.value_or(0) / fastest_ms();
  return {.slot = slot, .scored = baseline_block_steps(times_slower) - 1, .patience = kPatience};
}

void Tuner::Core::run(const std::vector<int32_t>& slots, Block (Core::*block)(int32_t) const) {
  for (int32_t slot : slots) schedule_.add((this->*block)(slot));
}

const policies::Candidate& Tuner::Core::chosen() const {
  const int32_t otherwise = importing_ && !is_held() && !is_over(kImportedSlot) ? kImportedSlot : baseline_;
  const bool is_pinned = options_.budget_steps == 0;
  return is_pinned ? *in_force_ : *slots_.at(confirmed_.value_or(otherwise)).candidate;
}

double Tuner::Core::progress() const {
  switch (stage_) {
    case Stage::imported:
    case Stage::observe: {
      const size_t wanted = std::max<size_t>(observation_.next_blocks().size(), 1);
      return std::min(1.0, static_cast<double>(scores_.size()) / static_cast<double>(wanted));
    }
    case Stage::partition: return static_cast<double>(scores_.size()) / static_cast<double>(scores_.size() + 1);
    case Stage::race: return race_ ? race_->progress() : 0;
    case Stage::confirm: return confirmation_ ? confirmation_->progress(scores_.size()) : 0;
    case Stage::audit: return confirmation_->progress(scores_.size());
    case Stage::watch: return 1;
  }
  return 0;
}

void Tuner::Core::decide(What what, std::string label, double value) {
  decisions_.push_back({step_, stage(), what, std::move(label), value});
}

// --- the class that others see ---------------------------------------------------------------------------------------

Tuner::Tuner(const TunerOptions& options, MakePolicy make_policy, policies::Knowledge knowledge,
             const std::vector<policies::Candidate>& baselines, const std::optional<policies::Candidate>& imported)
    : core_(std::make_unique<Core>(options, std::move(make_policy), std::move(knowledge), baselines, imported)) {}

Tuner::~Tuner() = default;

Action Tuner::on_step(const core::StepReport& report) { return core_->on_step(report); }
void Tuner::learn_table(const core::GradientTable& table) { core_->learn_table(table); }
void Tuner::learn_timing(int32_t slot, std::vector<policies::TimedOp> ops) {
  core_->learn_timing(slot, std::move(ops));
}
Stage Tuner::stage() const { return core_->stage(); }
const Outcome& Tuner::outcome() const { return core_->outcome(); }
const policies::Candidate& Tuner::in_force() const { return core_->in_force(); }
const policies::Candidate& Tuner::chosen() const { return core_->chosen(); }
double Tuner::progress() const { return core_->progress(); }
std::vector<Decision> Tuner::take_decisions() { return core_->take_decisions(); }

}  // namespace gradtune::tuner
