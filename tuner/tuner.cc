// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
#include "tuner/tuner.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "engine/core/rng.h"
#include "tuner/budget.h"
#include "tuner/confirm.h"
#include "tuner/drift.h"
#include "tuner/observation.h"
#include "tuner/race.h"
#include "tuner/roster.h"
#include "tuner/schedule.h"

namespace gradtune::tuner {
namespace {

constexpr size_t kMostFinalists = 7;  // with the baseline 8 arms
constexpr int kScored = 3;            // steps of a block outside of races, after one that is dropped
constexpr int kPatience = 5;          // steps that a candidate's block is extended by when some can not be scored
constexpr int kImported = 20;         // steps of an imported strategy before it is doubted
constexpr double kAborted = 2.0;      // times the fastest strategy known: its blocks are cut short
constexpr double kBehind = 1.25;      // times the fastest finalist, as measured before: not worth a place in the race

// A much slower baseline is given shorter blocks: the gap is plain with less, and its steps are what tuning waits for.
int baseline_block_steps(int block_steps, double times_slower) {
  if (times_slower > 3) return std::min(block_steps, 3);
  return times_slower > 1.5 ? std::min(block_steps, 4) : block_steps;
}

}  // namespace

std::string_view to_string(Stage stage) {
  switch (stage) {
    case Stage::imported: return "imported";
    case Stage::observe: return "observe";
    case Stage::partition: return "partition";
    case Stage::race: return "race";
    case Stage::confirm: return "confirm";
    case Stage::watch: return "watch";
  }
  return "unknown";
}

int32_t first_slot(const TunerOptions& options, const std::vector<core::CompressorTraits>& traits,
                   const std::optional<policies::Candidate>& imported) {
  if (!imported) return 0;
  const bool is_lossy = core::needed_fidelity(imported->strategy, traits) == core::Fidelity::lossy;
  return is_lossy && options.lossy_after > 0 ? 0 : kImportedSlot;
}

// Each stage asks for blocks and preparations, and goes on when all of them are done: the scores of its blocks go to
// the experiment that the stage is about (Observation, Race, Confirmation) or to the policy, which says what is to run
// next.
class Tuner::Core {
 public:
  Core(const TunerOptions& options, std::unique_ptr<policies::Policy> policy, policies::Knowledge knowledge,
       const std::vector<policies::Candidate>& baselines, const std::optional<policies::Candidate>& imported);

  Action on_step(const core::StepReport& report);
  void learn_table(const core::GradientTable& table) { knowledge_.table = table; }

  Stage stage() const { return importing_ && stage_ < Stage::confirm ? Stage::imported : stage_; }
  const Outcome& outcome() const { return outcome_; }
  const policies::Candidate& in_force() const { return *in_force_; }
  double progress() const;
  std::vector<Decision> take_decisions() { return std::exchange(decisions_, {}); }

 private:
  // One for each stage: what its scores say, and what is next.
  void advance();
  void observe(std::vector<Score> scores);
  void partition();
  void race(const std::vector<Score>& scores);
  void confirm(const std::vector<Score>& scores);
  void watch(const core::StepReport& report);

  void start_race(std::vector<int32_t> finalists);
  void start_confirming();
  void fall_back(const std::string& why);
  void conclude(int32_t slot);

  void note(const Score& score);
  void follow_preparation(const core::StepReport& report);
  bool is_held() const;
  Action next_action();
  Action put_in_force(Command::Kind kind, int32_t slot);

  Block trial_block(int32_t slot) const;
  Block paired_block(int32_t slot) const;
  void run(const std::vector<int32_t>& slots, Block (Core::*block)(int32_t) const);
  Race::Arm arm(int32_t slot) const;
  int32_t resting_slot() const;
  double fastest_ms() const;
  void decide(const char* what, std::string label, double value);

  const TunerOptions options_;
  const std::unique_ptr<policies::Policy> policy_;
  policies::Knowledge knowledge_;
  const int32_t baselines_;  // in slots 0 ... baselines_ - 1
  const core::Rng rng_;

  Roster roster_;
  Schedule schedule_;
  Budget budget_;
  std::vector<Score> scores_;    // since the stage went on last
  bool is_trial_ahead_ = false;  // on the schedule, not known to be prepared

  Stage stage_ = Stage::observe;
  bool importing_;           // the race, of one, and the confirmation are about the imported strategy
  bool is_opening_ = false;  // it runs, and nothing else is looked at yet
  Observation observation_;
  std::vector<int32_t> finalists_;
  std::optional<Race> race_;
  std::optional<Confirmation> confirmation_;
  int32_t winner_ = 0;
  int32_t baseline_ = 0;
  std::optional<int32_t> commit_;  // to be announced
  Drift drift_;                    // since then

  int64_t step_ = -1;
  std::shared_ptr<const policies::Candidate> in_force_, in_force_before_;
  Outcome outcome_;
  std::vector<Decision> decisions_;
};

Tuner::Core::Core(const TunerOptions& options, std::unique_ptr<policies::Policy> policy, policies::Knowledge knowledge,
                  const std::vector<policies::Candidate>& baselines, const std::optional<policies::Candidate>& imported)
    : options_(options),
      policy_(std::move(policy)),
      knowledge_(std::move(knowledge)),
      baselines_(static_cast<int32_t>(baselines.size())),
      rng_(options.seed),
      roster_(knowledge_.traits),
      schedule_(kLead, first_slot(options, knowledge_.traits, imported)),
      budget_(options.budget_steps, options.budget_share),
      importing_(imported.has_value()),
      observation_(baselines_) {
  core::check(policy_ != nullptr, "a tuner needs a policy");
  core::check(baselines_ == 1 || baselines_ == 2, "there are one or two baselines");
  core::check(options.block_steps >= 3, "a block of a race has three steps at least");
  for (int32_t slot = 0; slot < baselines_; ++slot) {
    roster_.add_ready(slot, baselines[static_cast<size_t>(slot)], /*is_permanent=*/true);
  }
  if (imported) roster_.add_ready(kImportedSlot, *imported, /*is_permanent=*/false);
  // Whoever imports a strategy gets its step time from the start; the baseline is looked at later, and only then does
  // tuning begin.
  is_opening_ = schedule_.slot() == kImportedSlot;
  if (is_opening_) schedule_.add({.slot = kImportedSlot, .scored = kImported - 1, .patience = kPatience});
  in_force_ = roster_.at(schedule_.slot()).candidate;
  outcome_.label = in_force_->label;
}

Action Tuner::Core::on_step(const core::StepReport& report) {
  step_ = report.step;
  schedule_.record(report);
  for (const Score& score : schedule_.take_scores()) note(score);
  if (stage_ == Stage::watch) watch(report);
  if (stage_ != Stage::watch) {
    if (!is_held() && !is_opening_) budget_.count(report, roster_.preparing().has_value());
    if (stage_ == Stage::observe) observation_.record(report);
    follow_preparation(report);
    if (!budget_.allows()) {
      decide("keep baseline", "the budget is spent", observation_.is_over() ? observation_.baseline_ms() : 0);
      conclude(baseline_);
    } else if (schedule_.is_done() && roster_.is_idle() && !is_held()) {
      advance();
    }
  }
  return next_action();
}

// --- what runs next --------------------------------------------------------------------------------------------------

// At most one command a step. A switch that is due goes first, since blocks are as long as they were planned only then.
Action Tuner::Core::next_action() {
  if (commit_) return put_in_force(Command::Kind::commit, *std::exchange(commit_, {}));
  if (stage_ != Stage::watch) schedule_.rest(resting_slot());
  if (const auto slot = schedule_.next_slot()) return put_in_force(Command::Kind::run, *slot);
  // Prepared is what follows the strategy that was just switched to, so that the preparation falls into the step that
  // is dropped after the switch.
  if (!roster_.preparing() && roster_.next_to_prepare() && !schedule_.is_waiting() && !is_held()) {
    const Command command = roster_.start_preparing();
    return {command, roster_.at(command.slot).candidate};
  }
  if (is_trial_ahead_) return {};  // what is in force is not sure
  return {roster_.next_drop(schedule_.slot()).value_or(Command{}), nullptr};
}

Action Tuner::Core::put_in_force(Command::Kind kind, int32_t slot) {
  in_force_before_ = std::exchange(in_force_, roster_.at(slot).candidate);
  return {{.kind = kind, .slot = slot, .bytes = 0}, nullptr};
}

// A trial is put on the schedule while its preparation is still on its way: ranks that are done with it in time run it
// a step sooner, and where one of them is not, the switch takes place on none.
void Tuner::Core::follow_preparation(const core::StepReport& report) {
  const auto prepared = roster_.follow(report);
  if (prepared && !prepared->entry.is_ready) decide("prepare failed", prepared->entry.candidate->label, 0);
  if (stage_ != Stage::partition || (!prepared && !roster_.preparing())) return;
  const int32_t slot = prepared ? prepared->slot : *roster_.preparing();
  const bool is_ready = prepared && prepared->entry.is_ready;
  const bool is_hopeful = !prepared && roster_.waited() == 1;
  if (is_hopeful || (is_ready && !is_trial_ahead_)) schedule_.add(trial_block(slot));
  if (is_trial_ahead_ && !is_ready && schedule_.take_back(slot)) in_force_ = in_force_before_;
  is_trial_ahead_ = is_hopeful;
}

// Too early for what is next in line, as it is lossy.
bool Tuner::Core::is_held() const {
  const auto next = importing_ ? kImportedSlot : roster_.next_to_prepare();
  return next && roster_.at(*next).fidelity == core::Fidelity::lossy && step_ + kLead < options_.lossy_after;
}

// What runs while nothing is measured: the fastest strategy known. A long wait is not spent with what is not confirmed
// (I4).
int32_t Tuner::Core::resting_slot() const {
  if (is_held()) return baseline_;
  return importing_ ? kImportedSlot : roster_.fastest().value_or(baseline_);
}

double Tuner::Core::fastest_ms() const {
  const auto fastest = roster_.fastest();
  return fastest ? *roster_.at(*fastest).step_ms : std::numeric_limits<double>::infinity();
}

Block Tuner::Core::trial_block(int32_t slot) const {
  if (slot < baselines_) return {.slot = slot, .scored = kScored};
  return {.slot = slot, .scored = kScored, .limit_ms = kAborted * fastest_ms(), .patience = kPatience};
}

Block Tuner::Core::paired_block(int32_t slot) const {
  if (slot == baseline_) {
    const double times_slower = roster_.at(slot).step_ms.value_or(0) / fastest_ms();
    return {.slot = slot, .scored = baseline_block_steps(options_.block_steps, times_slower) - 1};
  }
  return {.slot = slot,
          .scored = options_.block_steps - 1,
          .limit_ms = stage_ == Stage::race ? kAborted * fastest_ms() : std::numeric_limits<double>::infinity(),
          .patience = kPatience};
}

void Tuner::Core::run(const std::vector<int32_t>& slots, Block (Core::*block)(int32_t) const) {
  for (int32_t slot : slots) schedule_.add((this->*block)(slot));
}

void Tuner::Core::note(const Score& score) {
  scores_.push_back(score);
  if (score.step_ms) roster_.measured(score.slot, *score.step_ms);
  if (score.step_ms && score.slot == baseline_ && observation_.is_over()) budget_.learn_baseline(*score.step_ms);
  if (stage_ != Stage::partition || !roster_.contains(score.slot)) return;
  const Entry& entry = roster_.at(score.slot);
  decide("measure", entry.candidate->label, score.step_ms.value_or(0));
  if (!score.step_ms) return roster_.release(score.slot);
  policy_->learn({.strategy_hash = entry.hash, .step_ms = *score.step_ms, .steps = score.steps});
  roster_.release_slowest_beyond(kMostFinalists);  // slots are memory on every rank
}

// --- the stages ------------------------------------------------------------------------------------------------------

void Tuner::Core::advance() {
  const std::vector<Score> scores = std::exchange(scores_, {});
  switch (stage_) {
    case Stage::observe: return observe(scores);
    case Stage::partition: return partition();
    case Stage::race: return race(scores);
    case Stage::confirm: return confirm(scores);
    case Stage::imported:
    case Stage::watch: return;
  }
}

void Tuner::Core::observe(std::vector<Score> scores) {
  std::erase_if(scores, [&](const Score& score) { return score.slot >= baselines_; });
  is_opening_ = false;
  observation_.score(scores);
  if (!observation_.is_over()) return run(observation_.next_blocks(), &Core::trial_block);
  baseline_ = observation_.baseline();
  budget_.learn_baseline(observation_.baseline_ms());
  knowledge_.baseline_ms = outcome_.baseline_ms = observation_.baseline_ms();
  knowledge_.compute_ms = observation_.compute_max_ms();
  decide("compute slowest", "", observation_.compute_max_ms());
  decide("compute fastest", "", observation_.compute_min_ms());
  decide("baseline", roster_.at(baseline_).candidate->label, observation_.baseline_ms());
  if (importing_) return start_race({kImportedSlot});
  stage_ = Stage::partition;
  partition();
}

void Tuner::Core::partition() {
  const policies::Proposal proposal = policy_->propose(knowledge_);
  std::vector<int32_t> slots;
  for (const policies::Candidate& candidate : proposal.candidates) {
    const int32_t slot = roster_.slot_of(candidate);
    const bool is_new = std::find(slots.begin(), slots.end(), slot) == slots.end();
    if (is_new && (!proposal.final || slots.size() < kMostFinalists)) slots.push_back(slot);
  }
  if (proposal.final || slots.empty()) return start_race(std::move(slots));
  for (int32_t slot : slots) {
    if (roster_.at(slot).is_ready) {
      schedule_.add(trial_block(slot));
    } else {
      roster_.prepare(slot);
    }
  }
}

void Tuner::Core::start_race(std::vector<int32_t> finalists) {
  double best_ms = std::numeric_limits<double>::infinity();
  for (int32_t slot : finalists) best_ms = std::min(best_ms, roster_.at(slot).step_ms.value_or(best_ms));
  std::erase_if(finalists, [&](int32_t slot) {
    const double behind = roster_.at(slot).step_ms ? *roster_.at(slot).step_ms / best_ms : 1;
    if (slot >= baselines_ && behind <= kBehind) return false;
    decide("eliminate", roster_.at(slot).candidate->label, std::log(behind));
    return true;
  });
  roster_.release_all_but(finalists);
  stage_ = Stage::race;
  for (int32_t slot : finalists) {
    if (!roster_.at(slot).is_ready) roster_.prepare(slot);
  }
  finalists_ = std::move(finalists);
  if (roster_.is_idle()) race({});
}

Race::Arm Tuner::Core::arm(int32_t slot) const {
  const Entry& entry = roster_.at(slot);
  return {.slot = slot, .fidelity = entry.fidelity, .buckets = entry.candidate->strategy.buckets.size()};
}

void Tuner::Core::race(const std::vector<Score>& scores) {
  if (race_) {
    for (const Race::Eliminated& out : race_->score(scores)) {
      decide("eliminate", roster_.at(out.slot).candidate->label, out.behind);
      roster_.release(out.slot);
    }
  } else {
    std::vector<Race::Arm> arms;
    for (int32_t slot : finalists_) {
      if (roster_.contains(slot)) arms.push_back(arm(slot));  // those that could be prepared
    }
    race_.emplace(arm(baseline_), arms, rng_.fork("race"));
  }
  if (race_->is_over()) return start_confirming();
  run(race_->next_round(), &Core::paired_block);
}

void Tuner::Core::start_confirming() {
  const auto winner = race_->winner();
  if (!winner) return fall_back("nothing looks faster");
  decide("race won", roster_.at(winner->slot).candidate->label, winner->effect);
  const int pairs = pairs_for(*winner);
  winner_ = winner->slot;
  roster_.release_all_but({winner_});
  stage_ = Stage::confirm;
  const int steps_of_a_pair = options_.block_steps + 1 + paired_block(baseline_).scored;
  if (!budget_.allows(pairs * steps_of_a_pair)) return fall_back("the budget leaves no room to confirm");
  decide("confirm", roster_.at(winner_).candidate->label, pairs);
  confirmation_.emplace(winner_, baseline_, pairs, rng_.fork("confirm"));
  run(confirmation_->next_blocks(), &Core::paired_block);
}

void Tuner::Core::confirm(const std::vector<Score>& scores) {
  confirmation_->score(scores);
  if (!confirmation_->is_over()) return run(confirmation_->next_blocks(), &Core::paired_block);
  const Claim claim = confirmation_->claim();
  outcome_.baseline_ms = claim.baseline_ms;
  outcome_.pairs = claim.pairs;
  if (!claim.confirmed) {
    decide("not confirmed", roster_.at(winner_).candidate->label, claim.gain_low);
    return fall_back("no gain was confirmed");
  }
  outcome_.committed = true;
  outcome_.committed_ms = claim.winner_ms;
  outcome_.gain = claim.gain;
  outcome_.gain_low = claim.gain_low;
  outcome_.gain_high = claim.gain_high;
  decide("commit", roster_.at(winner_).candidate->label, claim.gain);
  conclude(winner_);
}

// An imported strategy that does not hold is dropped, and tuning begins; otherwise the baseline stays.
void Tuner::Core::fall_back(const std::string& why) {
  race_.reset();
  confirmation_.reset();
  if (!importing_) {
    decide("keep baseline", why, outcome_.baseline_ms);
    return conclude(baseline_);
  }
  decide("drop imported", why, 0);
  if (roster_.contains(kImportedSlot)) roster_.release(kImportedSlot);
  importing_ = false;
  stage_ = Stage::partition;
  partition();
}

void Tuner::Core::conclude(int32_t slot) {
  stage_ = Stage::watch;
  importing_ = is_trial_ahead_ = false;
  schedule_.stop(slot);
  roster_.release_all_but({slot});
  commit_ = slot;
  outcome_.label = roster_.at(slot).candidate->label;
  outcome_.steps = budget_.steps();
  if (observation_.is_over()) outcome_.cost_ms = budget_.cost_ms(outcome_.baseline_ms);
}

// What moved is written down; it does not change what runs.
void Tuner::Core::watch(const core::StepReport& report) {
  const bool counts = report.slot == schedule_.slot() && report.finite && !report.excluded && report.step_ms > 0;
  const auto alarm = counts ? drift_.record(report.step_ms) : std::nullopt;
  if (alarm) decide("drift", outcome_.label, alarm->log_shift);
}

double Tuner::Core::progress() const {
  switch (stage_) {
    case Stage::imported:
    case Stage::observe: return std::min(1.0, static_cast<double>(scores_.size()) / baselines_);
    case Stage::partition: return static_cast<double>(scores_.size()) / static_cast<double>(scores_.size() + 1);
    case Stage::race: return race_ ? race_->progress() : 0;
    case Stage::confirm: return confirmation_->progress(scores_.size());
    case Stage::watch: return 1;
  }
  return 0;
}

void Tuner::Core::decide(const char* what, std::string label, double value) {
  decisions_.push_back({step_, stage(), what, std::move(label), value});
}

// --- the class that others see ---------------------------------------------------------------------------------------

Tuner::Tuner(const TunerOptions& options, std::unique_ptr<policies::Policy> policy, policies::Knowledge knowledge,
             const std::vector<policies::Candidate>& baselines, const std::optional<policies::Candidate>& imported)
    : core_(std::make_unique<Core>(options, std::move(policy), std::move(knowledge), baselines, imported)) {}

Tuner::~Tuner() = default;

Action Tuner::on_step(const core::StepReport& report) { return core_->on_step(report); }
void Tuner::learn_table(const core::GradientTable& table) { core_->learn_table(table); }
Stage Tuner::stage() const { return core_->stage(); }
const Outcome& Tuner::outcome() const { return core_->outcome(); }
const policies::Candidate& Tuner::in_force() const { return core_->in_force(); }
double Tuner::progress() const { return core_->progress(); }
std::vector<Decision> Tuner::take_decisions() { return core_->take_decisions(); }

}  // namespace gradtune::tuner
