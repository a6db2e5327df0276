// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// Leads from observing to a decision: evaluates the scores of each stage and decides what runs next.
#include <algorithm>
#include <cmath>
#include <limits>
#include <string>
#include <utility>

#include "tuner/tuner_core.h"

namespace gradtune::tuner {
namespace {

constexpr int kWorthWaiting = 100;  // steps: about as many as a search takes
constexpr int kMostAsked = 64;      // consecutive proposals none of which may run
constexpr double kBehind = 1.25;    // factor over the fastest finalist beyond which an arm is left out

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

}  // namespace

void Tuner::Core::note(const Score& block) {
  Score score = block;
  if (is_over(score.slot)) score.step_ms.reset();  // at any speed
  scores_.push_back(score);
  if (score.step_ms) slots_.measured(score.slot, *score.step_ms);
  if (score.step_ms && score.slot == baseline_ && observation_.is_over()) budget_.learn_baseline(*score.step_ms);
  if (!is_in<Searching>() || !slots_.contains(score.slot)) return;
  const Entry& entry = slots_.at(score.slot);
  if (entry.candidate->predicted_ms) decide(What::predict, entry.candidate->label, *entry.candidate->predicted_ms);
  decide(What::measure, entry.candidate->label, score.step_ms.value_or(0));
  if (!score.step_ms) return slots_.release(score.slot);
  policy_->learn(
      {.strategy_hash = contenders_.proposed_hash(score.slot), .step_ms = *score.step_ms, .steps = score.steps});
  contenders_.measured(*entry.candidate, *score.step_ms);
  is_any_measured_ = true;
  slots_.release_slowest_beyond(kMostFinalists);  // slots are memory on every rank
}

void Tuner::Core::learn_timing(int32_t slot, std::vector<policies::TimedOp> ops) {
  constexpr size_t kMostTimed = 256;
  if (!slots_.contains(slot) || knowledge_.timed.size() == kMostTimed) return;
  const core::Strategy& strategy = slots_.at(slot).candidate->strategy;
  if (are_of(strategy, ops)) knowledge_.timed.push_back({strategy, std::move(ops)});
}

void Tuner::Core::advance() {
  const std::vector<Score> scores = std::exchange(scores_, {});
  if (is_in<Observing>()) return observe(scores);
  if (is_in<Searching>()) return search();
  if (is_in<Racing>()) return race(scores);
  if (is_in<Confirming>()) return confirm(scores);
  if (is_in<Auditing>()) return audit(scores);
}

void Tuner::Core::observe(std::vector<Score> scores) {
  std::erase_if(scores, [&](const Score& score) { return score.slot >= baselines_; });
  using Before = Observing::Before;
  Before& before = std::get<Observing>(phase_).before;
  if (before == Before::opening) before = Before::imported;
  observation_.score(scores);
  if (!observation_.is_over()) return run_baselines();
  baseline_ = observation_.baseline();
  rival_ = observation_.rival();
  budget_.learn_baseline(observation_.baseline_ms());
  knowledge_.baseline_ms = observation_.baseline_ms();
  if (!confirmed_) outcome_.baseline_ms = observation_.baseline_ms();
  knowledge_.compute_ms = observation_.compute_max_ms();
  decide(What::compute_slowest, "", observation_.compute_max_ms());
  decide(What::compute_fastest, "", observation_.compute_min_ms());
  decide(What::baseline, slots_.at(baseline_).candidate->label, observation_.baseline_ms());
  if (knowledge_.ranks.size == 1) return settle("one rank sends nothing");
  if (before == Before::search) return start_search();
  if (before == Before::looking) return rank_again();
  if (is_over(kImportedSlot)) return fall_back("it is over its error budget");
  start_race(Racing::Among::imported, {kImportedSlot});
}

// Nothing is switched between two blocks of the same baseline.
void Tuner::Core::run_baselines() {
  std::optional<int32_t> before;
  for (const int32_t slot : observation_.next_blocks()) {
    Block block = trial_block(slot);
    if (slot == before) block.dropped = 0;
    schedule_.add(block);
    before = slot;
  }
}

void Tuner::Core::start_search() {
  if (!policy_) policy_ = make_policy_();
  contenders_.start_search();
  is_any_measured_ = false;
  why_not_prepared_.clear();
  clock_.searched();
  phase_ = Searching{};
  search_horizon_ = step_ + kWorthWaiting;
  left_out_until_.reset();
  search();
}

// Tells if the search leaves out a strategy that may run from that step on. If so, that step is noted, and a search
// follows then.
bool Tuner::Core::leaves_out(int earliest) {
  if (earliest <= search_horizon_) return false;
  left_out_until_ = std::min(earliest, left_out_until_.value_or(earliest));
  return true;
}

// The knowledge without the compressors that the search leaves out.
policies::Knowledge Tuner::Core::known_for_search() {
  policies::Knowledge known = knowledge_;
  std::erase_if(known.codecs, [&](const core::CompressorSpec& codec) {
    return leaves_out(earliest_step(options_, knowledge_.traits, codec));
  });
  return known;
}

void Tuner::Core::search() {
  policies::Proposal proposal;
  std::vector<int32_t> slots;
  // If nothing in a proposal may run, the policy gets no measurements and continues with what it knows.
  for (int asked = 0; slots.empty() && !proposal.final && asked < kMostAsked; ++asked) {
    proposal = policy_->propose(known_for_search());
    slots = slots_of(proposal);
  }
  if (proposal.final || slots.empty()) return start_race(Racing::Among::found, std::move(slots));
  for (int32_t slot : slots) {
    if (slots_.at(slot).is_ready) {
      schedule_.add(trial_block(slot));
    } else {
      prepare(slot);
    }
  }
}

// The slots of those candidates that may run.
std::vector<int32_t> Tuner::Core::slots_of(const policies::Proposal& proposal) {
  std::vector<int32_t> slots;
  for (const policies::Candidate& proposed : proposal.candidates) {
    const auto candidate = bans_.admitted(proposed);
    if (!candidate || leaves_out(earliest_step(options_, knowledge_.traits, candidate->strategy))) continue;
    const int32_t slot = slots_.slot_of(*candidate);
    contenders_.proposed(slot, core::hash(proposed.strategy));
    const bool is_new = std::find(slots.begin(), slots.end(), slot) == slots.end();
    if (is_new && (!proposal.final || slots.size() < kMostFinalists)) slots.push_back(slot);
  }
  return slots;
}

void Tuner::Core::start_race(Racing::Among among, std::vector<int32_t> finalists) {
  double best_ms = std::numeric_limits<double>::infinity();
  for (int32_t slot : finalists) best_ms = std::min(best_ms, slots_.at(slot).step_ms.value_or(best_ms));
  std::erase_if(finalists, [&](int32_t slot) {
    const double behind = slots_.at(slot).step_ms ? *slots_.at(slot).step_ms / best_ms : 1;
    if (slot >= baselines_ && behind <= kBehind && !is_over(slot)) return false;
    decide(What::eliminate, slots_.at(slot).candidate->label, std::log(behind));
    return true;
  });
  std::vector<int32_t> holders;  // they keep their places whatever the search found
  if (confirmed_) holders.push_back(*confirmed_);
  for (const policies::Candidate& leader : contenders_.leaders()) {
    const int32_t slot = slots_.slot_of(leader);
    if (std::ranges::find(holders, slot) == holders.end()) holders.push_back(slot);
  }
  std::erase_if(finalists, [&](int32_t slot) { return std::ranges::find(holders, slot) != holders.end(); });
  finalists.resize(std::min(finalists.size(), kMostFinalists - holders.size()));  // drops the last ones
  finalists.insert(finalists.end(), holders.begin(), holders.end());
  slots_.release_all_but(finalists);
  for (int32_t slot : finalists) prepare(slot);
  phase_ = Racing{.among = among, .finalists = std::move(finalists)};
  if (slots_.is_idle()) race({});
}

Race::Arm Tuner::Core::arm(int32_t slot) const {
  const Entry& entry = slots_.at(slot);
  return {.slot = slot,
          .fidelity = entry.fidelity,
          .buckets = entry.candidate->strategy.buckets.size(),
          .is_running = slot == confirmed_};
}

void Tuner::Core::race(const std::vector<Score>& scores) {
  auto& [among, finalists, contest] = std::get<Racing>(phase_);
  if (contest) {
    for (const Race::Eliminated& out : contest->score(scores)) {
      decide(What::eliminate, slots_.at(out.slot).candidate->label, out.behind);
      slots_.release(out.slot);
    }
  } else {
    std::vector<Race::Arm> arms;
    for (int32_t slot : finalists) {
      const bool may_run = slots_.contains(slot) && !is_over(slot);  // it was prepared
      if (may_run) arms.push_back(arm(slot));
    }
    contest.emplace(arm(baseline_), arms, rng_.fork("race"));
  }
  const bool is_ranking = among == Racing::Among::known;  // a ranking needs no confirmation
  if (contest->is_over() || (!is_ranking && !leaves_room(*contest))) {
    return is_ranking ? judge_ranking() : start_confirming();
  }
  run(contest->next_round(), &Core::paired_block);
}

// Tells if the budget has room for another round and for a confirmation after it. One round less compares the arms
// less well; without a confirmation nothing is kept.
bool Tuner::Core::leaves_room(const Race& race) const {
  const auto arms = static_cast<int>(race.slots_left().size());
  const int confirming = steps_to_confirm(fewest_pairs(allowed_error(confirmations_), compared_baselines().size()));
  return race.progress() == 0 || budget_.allows(kLead + (1 + arms) * kBlockSteps + confirming);
}

void Tuner::Core::start_confirming() {
  const auto& racing = std::get<Racing>(phase_);
  const auto winner = racing.race->winner();
  if (!winner) return fall_back(why_nothing());
  decide(What::race_won, slots_.at(winner->slot).candidate->label, winner->effect);
  if (winner->slot == confirmed_) return settle("");
  const double error = allowed_error(confirmations_);
  slots_.release_all_but({winner->slot});
  const bool is_imported = racing.among == Racing::Among::imported;
  phase_ =
      Confirming{.origin = is_imported ? Confirming::Origin::imported : Confirming::Origin::race, .slot = winner->slot};
  confirm_winner(pairs_for(*winner, error, compared_baselines().size()), error);
}

std::string Tuner::Core::why_nothing() const {
  if (why_not_prepared_.empty()) return "nothing looks faster";
  return (is_any_measured_ ? "nothing that could be prepared looks faster; what could not: "
                           : "no candidate could be prepared: ") +
         why_not_prepared_;
}

// A winner that is only faster than the slower baseline gains nothing.
std::vector<int32_t> Tuner::Core::compared_baselines() const {
  std::vector<int32_t> baselines = {baseline_};
  if (rival_) baselines.push_back(*rival_);
  return baselines;
}

int Tuner::Core::steps_to_confirm(int pairs) const {
  const Block block = tested_block(baseline_);
  return kLead + pairs * (1 + static_cast<int>(compared_baselines().size())) * (block.dropped + block.scored);
}

// Uses fewer pairs if the budget has no room for all: a smaller gain may be missed, but a false one is as unlikely.
void Tuner::Core::confirm_winner(int pairs, double error) {
  const int fewest = fewest_pairs(error, compared_baselines().size());
  while (pairs > fewest && !budget_.allows(steps_to_confirm(pairs))) --pairs;
  if (!budget_.allows(steps_to_confirm(pairs))) return settle("the budget leaves no room to confirm");
  auto& [origin, slot, confirmation] = std::get<Confirming>(phase_);
  decide(What::confirm, slots_.at(slot).candidate->label, pairs);
  ++confirmations_;
  confirmation.emplace(slot, compared_baselines(), pairs, error, rng_.fork("confirm").fork(std::to_string(step_)));
  run(confirmation->next_blocks(), &Core::tested_block);
}

void Tuner::Core::confirm(const std::vector<Score>& scores) {
  auto& confirming = std::get<Confirming>(phase_);
  const int32_t winner = confirming.slot;
  if (!confirming.confirmation) return confirm_repaired();  // it was prepared
  confirming.confirmation->score(scores);
  if (!confirming.confirmation->is_over()) {
    return run(confirming.confirmation->next_blocks(), &Core::tested_block);
  }
  const Claim claim = confirming.confirmation->claim();
  if (claim.baseline != baseline_) {
    rival_ = std::exchange(baseline_, claim.baseline);
    budget_.learn_baseline(claim.baseline_ms);
    knowledge_.baseline_ms = claim.baseline_ms;
    decide(What::baseline, slots_.at(baseline_).candidate->label, claim.baseline_ms);
  }
  decide(What::baseline_took, slots_.at(winner).candidate->label, claim.baseline_ms);
  decide(What::winner_took, slots_.at(winner).candidate->label, claim.committed_ms);
  decide(What::gain_at_least, slots_.at(winner).candidate->label, claim.gain_low);
  decide(What::gain_at_most, slots_.at(winner).candidate->label, claim.gain_high);
  if (!claim.confirmed || !is_worth(winner, claim.gain)) {
    if (!confirmed_) {
      outcome_.baseline_ms = claim.baseline_ms;
      outcome_.pairs = claim.pairs;
    }
    decide(What::not_confirmed, slots_.at(winner).candidate->label, claim.gain_low);
    return fall_back(claim.confirmed ? "its gain is too small for what it loses" : "no gain was confirmed");
  }
  static_cast<Comparison&>(outcome_) = claim;
  outcome_.pairs = claim.pairs;
  outcome_.committed = true;
  outcome_.predicted_ms = slots_.at(winner).candidate->predicted_ms;
  if (!outcome_.first_commit) outcome_.first_commit = step_ + kLead;
  clock_.committed(claim.committed_ms, claim.baseline_ms);
  decide(What::commit, slots_.at(winner).candidate->label, claim.gain);
  if (confirmed_) retire_committed();
  confirmed_ = winner;
  slots_.set_permanent(winner, true);
  conclude(winner);
}

// A strategy that is lossier than the baseline has to be faster by more than a tie.
bool Tuner::Core::is_worth(int32_t slot, double gain) const {
  const bool is_lossier = slots_.at(slot).fidelity > slots_.at(baseline_).fidelity;
  return gain > (is_lossier ? kTie : 0);
}

// An imported strategy that is not confirmed is dropped, and tuning begins.
void Tuner::Core::fall_back(const std::string& why) {
  if (!is_importing(phase_)) return settle(why);
  decide(What::drop_imported, why, 0);
  if (slots_.contains(kImportedSlot)) slots_.release(kImportedSlot);
  start_search();
}

// The strategy confirmed before stays, or the baseline.
void Tuner::Core::settle(const std::string& why) {
  if (confirmed_) {
    const Entry& kept = slots_.at(*confirmed_);
    decide(What::keep_committed, kept.candidate->label, kept.step_ms.value_or(0));
  } else {
    decide(What::keep_baseline, why, outcome_.baseline_ms);
  }
  conclude(confirmed_.value_or(baseline_));
}

}  // namespace gradtune::tuner
