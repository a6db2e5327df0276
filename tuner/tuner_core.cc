// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
#include "tuner/tuner_core.h"

#include <algorithm>
#include <utility>

#include "tuner/blocks.h"
#include "tuner/committed.h"

namespace gradtune::tuner {
namespace {

using What = Decision::What;

// Another version of a policy, which replays the reports of this one, may have another strategy in that slot.
bool are_of(const core::Strategy& strategy, const std::vector<policies::TimedOp>& ops) {
  return std::ranges::all_of(ops, [&](const policies::TimedOp& op) {
    const auto b = static_cast<size_t>(op.bucket);
    if (b >= strategy.buckets.size()) return false;
    const std::vector<core::Step>& steps = strategy.buckets[b].option.steps;
    if (op.step < 0) return true;
    const auto s = static_cast<size_t>(op.step);
    return s < steps.size() && (op.bytes < 0 || core::is_collective(steps[s].kind));
  });
}

Context make_context(const TunerOptions& options, Tuner::MakePolicy make_policy, policies::Knowledge knowledge,
                     const std::vector<policies::Candidate>& baselines,
                     const std::optional<policies::Candidate>& imported) {
  core::check(make_policy != nullptr, "a tuner needs a policy");
  core::check(baselines.size() == 1 || baselines.size() == 2, "there are one or two baselines");
  const core::TraitsTable traits = knowledge.traits;
  return {.options = options,
          .make_policy = std::move(make_policy),
          .rng = core::Rng(options.seed),
          .knowledge = std::move(knowledge),
          .slots = SlotTable(traits),
          .schedule = Schedule(kLead, first_slot(options, traits, imported)),
          .budget = Budget(options.budget_steps, options.budget_share),
          .baselines = {.count = static_cast<int32_t>(baselines.size())},
          .bans = Bans(baselines.back().strategy)};
}

}  // namespace

Tuner::Core::Core(const TunerOptions& options, MakePolicy make_policy, policies::Knowledge knowledge,
                  const std::vector<policies::Candidate>& baselines, const std::optional<policies::Candidate>& imported)
    : context_(make_context(options, std::move(make_policy), std::move(knowledge), baselines, imported)),
      timings_(context_.knowledge.machine.idle_links),
      phase_(Observing(imported ? Observing::Before::imported : Observing::Before::search, context_.baselines.count)) {
  for (int32_t slot = 0; slot < context_.baselines.count; ++slot) {
    context_.slots.add_ready(slot, baselines[static_cast<size_t>(slot)], /*is_permanent=*/true);
  }
  if (imported) context_.slots.add_ready(kImportedSlot, *imported, /*is_permanent=*/false);
  // A user who imports a strategy gets its speed from the start. The baseline is measured later, and only then does
  // tuning begin.
  if (context_.schedule.slot() == kImportedSlot) {
    phase_ = Observing(Observing::Before::opening, context_.baselines.count);
    context_.schedule.add(opening_block());
  }
  context_.diary.stage = stage();
  in_force_ = context_.slots.at(context_.schedule.slot()).candidate;
  context_.outcome.label = in_force_->label;
}

Action Tuner::Core::on_step(const core::StepReport& report) {
  context_.diary.step = report.step;
  guard_.count(report);
  if (context_.is_pinned()) return follow_pinned(report);
  context_.schedule.record(report);
  ended_ = context_.schedule.take_scores();
  // The policy does not learn the speed of a trial that loses too much: others would seem too slow for a race.
  if (is_in<Searching>() && report.slot != context_.committed) guard(report);
  for (const Score& score : ended_) note(score);
  if (const auto* watching = std::get_if<Watching>(&phase_)) enter(watching->watch(context_, report));
  if (!is_in<Watching>()) tune(report);
  guard(report);
  return next_action();
}

Action Tuner::Core::follow_pinned(const core::StepReport& report) {
  pin_imported();
  guard(report);
  return context_.at_once ? next_action() : Action{};
}

// Pins the imported strategy, from the first step in which it may run.
void Tuner::Core::pin_imported() {
  if (!is_importing(phase_) || context_.schedule.slot() == kImportedSlot || is_held()) return;
  context_.switch_to(kImportedSlot, Command::Kind::commit);
  context_.outcome.label = context_.candidate(kImportedSlot).label;
}

// Counts a step of a tuning that is under way, and leads the phase on once all that it asked for is done.
void Tuner::Core::tune(const core::StepReport& report) {
  if (is_tuning(report)) context_.budget.count(report, context_.slots.preparing().has_value());
  if (auto* observing = std::get_if<Observing>(&phase_)) observing->record(report);
  follow_preparation(report);
  if (!context_.budget.allows()) {
    enter(settle(context_, "the budget is spent"));
  } else if (context_.schedule.is_done() && context_.slots.is_idle() && !is_held()) {
    advance();
  }
}

// --- phases ----------------------------------------------------------------------------------------------------------

// A phase may lead on at once, so this ends with the first one that stays. Decisions up to the change of a phase carry
// the stage of the phase before.
void Tuner::Core::enter(NextPhase next) {
  while (next) {
    if (const auto* watching = std::get_if<Watching>(&*next)) watching->conclude(context_, phase_);
    phase_ = *std::move(next);
    scores_.clear();
    context_.diary.stage = stage();
    next = std::visit([&](auto& phase) { return phase.begin(context_); }, phase_);
  }
}

void Tuner::Core::advance() {
  const std::vector<Score> scores = std::exchange(scores_, {});
  enter(std::visit([&](auto& phase) { return phase.advance(context_, scores); }, phase_));
}

void Tuner::Core::guard(const core::StepReport& report) {
  NextPhase next = guard_.check(context_, phase_, report);
  for (Score& score : scores_) {
    if (context_.is_over(score.slot)) score.step_ms.reset();
  }
  enter(std::move(next));
}

void Tuner::Core::note(Score score) {
  if (context_.is_over(score.slot)) score.step_ms.reset();  // at any speed
  scores_.push_back(score);
  if (score.step_ms) context_.slots.measured(score.slot, *score.step_ms);
  const Baselines& baselines = context_.baselines;
  if (score.step_ms && score.slot == baselines.faster && baselines.are_measured) {
    context_.budget.learn_baseline(*score.step_ms);
  }
  if (auto* searching = std::get_if<Searching>(&phase_)) searching->learn(context_, score);
}

void Tuner::Core::follow_preparation(const core::StepReport& report) {
  const auto prepared = context_.slots.follow(report);
  if (prepared && !prepared->entry.is_ready) {
    const std::string why = std::exchange(failure_, {});
    context_.decide(What::prepare_failed, prepared->entry.candidate->label + (why.empty() ? "" : ": " + why), 0);
    context_.search.why_not_prepared = why;
  }
  auto* searching = std::get_if<Searching>(&phase_);
  if (searching != nullptr && searching->follow(context_, prepared)) in_force_ = in_force_before_;
}

// Tells if that step counts as tuning. Steps of the strategy that would run anyway do not count, however slow it
// became. Otherwise a search after an audit would begin with its budget spent.
bool Tuner::Core::is_tuning(const core::StepReport& report) const {
  const bool is_in_force_anyway = is_in<Auditing>() && report.slot == context_.committed;
  const auto* observing = std::get_if<Observing>(&phase_);
  const bool is_opening = observing != nullptr && observing->before() == Observing::Before::opening;
  return !is_held() && !is_opening && !is_in_force_anyway;
}

// --- what runs next --------------------------------------------------------------------------------------------------

// At most one command a step. A due switch goes first, since only then blocks are as long as planned.
Action Tuner::Core::next_action() {
  if (context_.at_once) return put_in_force(*std::exchange(context_.at_once, {}));
  if (!is_in<Watching>()) context_.schedule.rest(resting_slot());
  if (const auto slot = context_.schedule.next_slot()) {
    return put_in_force({.kind = Command::Kind::run, .slot = *slot, .bytes = 0});
  }
  // Prepares the successor of the strategy that was just switched to, so that the preparation falls into the step
  // that is dropped after the switch.
  SlotTable& slots = context_.slots;
  if (!slots.preparing() && slots.next_to_prepare() && !context_.schedule.is_waiting() && !is_held()) {
    const Command command = slots.start_preparing();
    return {command, slots.at(command.slot).candidate};
  }
  if (is_trial_ahead()) return {};  // the strategy in force is uncertain
  return {slots.next_drop(context_.schedule.slot()).value_or(Command{}), nullptr};
}

Action Tuner::Core::put_in_force(const Command& command) {
  in_force_before_ = std::exchange(in_force_, context_.slots.at(command.slot).candidate);
  return {command, nullptr};
}

bool Tuner::Core::is_trial_ahead() const {
  const auto* searching = std::get_if<Searching>(&phase_);
  return searching != nullptr && searching->is_trial_ahead();
}

// The next strategy in line may not run yet.
bool Tuner::Core::is_held() const {
  const auto next = is_importing(phase_) ? kImportedSlot : context_.slots.next_to_prepare();
  return next && context_.diary.step + kLead < context_.earliest_step_of(*next);
}

// The strategy that runs while nothing is measured: the fastest one known. During a long wait only a confirmed
// strategy runs.
int32_t Tuner::Core::resting_slot() const {
  const bool is_over = context_.is_over(kImportedSlot);
  const int32_t baseline = is_over ? context_.sound_baseline() : context_.baselines.faster;
  const int32_t safe = context_.committed.value_or(baseline);
  if (is_held()) return safe;
  return is_importing(phase_) && !is_over ? kImportedSlot : context_.slots.fastest().value_or(safe);
}

// --- what it is told and asked ---------------------------------------------------------------------------------------

void Tuner::Core::learn_timing(int32_t slot, std::vector<policies::TimedOp> ops) {
  constexpr size_t kMostTimed = 256;
  std::vector<policies::TimedRun>& timed = context_.knowledge.timed;
  if (!context_.slots.contains(slot) || timed.size() == kMostTimed) return;
  const core::Strategy& strategy = context_.candidate(slot).strategy;
  if (!are_of(strategy, ops)) return;
  auto learned = timings_.add(slot, context_.diary.step, std::move(ops));
  if (learned) timed.push_back({strategy, std::move(*learned)});
}

void Tuner::Core::learn_table(const core::GradientTable& table) {
  if (const auto* watching = std::get_if<Watching>(&phase_)) watching->compare_content(context_, table);
  context_.knowledge.table = table;
}

const policies::Candidate& Tuner::Core::chosen() const {
  if (context_.is_pinned()) return *in_force_;
  const bool is_imported = is_importing(phase_) && !is_held() && !context_.is_over(kImportedSlot);
  return context_.candidate(context_.committed.value_or(is_imported ? kImportedSlot : context_.baselines.faster));
}

double Tuner::Core::progress() const {
  return std::visit([&](const auto& phase) { return phase.progress(scores_.size()); }, phase_);
}

}  // namespace gradtune::tuner
