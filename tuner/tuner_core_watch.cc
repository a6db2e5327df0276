// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// The work after a decision: alarms, audits against the baseline, and the check that the best strategy is still the
// best.
#include <algorithm>
#include <cmath>
#include <utility>

#include "tuner/tuner_core.h"

namespace gradtune::tuner {
namespace {

// An audit takes two pairs if one side is far behind, and otherwise enough to resolve a few percent.
constexpr int kFirstLook = 2, kAuditPairs = 6;
constexpr double kAuditError = 0.05;  // an audit claims no gain
constexpr double kFarBehind = 1.5;    // factor over the other's step

// If the speed of the committed strategy relative to the baseline moved this far since the search (as a logarithm),
// strategies that were not measured then may be the best.
constexpr double kMoved = 0.2;

// Most strategies predicted by a policy that race before a new search.
constexpr size_t kMostForeseen = 2;

}  // namespace

void Tuner::Core::conclude(int32_t slot) {
  const double level_ms = slots_.at(slot).step_ms.value_or(outcome_.baseline_ms);
  const double cost_ms = budget_.cost_ms(level_ms);
  const auto* confirming = std::get_if<Confirming>(&phase_);
  const bool has_lost = confirming != nullptr && confirming->origin == Confirming::Origin::repair && !confirmed_;
  if (is_in<Auditing>() || has_lost) {
    clock_.audited(cost_ms);
  } else {
    clock_.decided(cost_ms, level_ms, knowledge_.baseline_ms - level_ms,
                   kFirstLook * kBlockSteps * knowledge_.baseline_ms);
  }
  // After an audit that it passed, a change in the meantime must still be noticed.
  if (!is_in<Auditing>() || slot != confirmed_) clock_.watch_anew();
  outcome_.steps += budget_.steps();
  if (observation_.is_over()) outcome_.cost_ms += budget_.cost_ms(knowledge_.baseline_ms);
  outcome_.label = slots_.at(slot).candidate->label;
  decide(What::tuning_steps, outcome_.label, static_cast<double>(outcome_.steps));
  decide(What::tuning_cost, outcome_.label, outcome_.cost_ms);
  phase_ = Watching{};
  policy_.reset();
  contenders_.clear_leaders();
  schedule_.stop(slot);
  slots_.release_all_but({slot});
  at_once_ = {.kind = Command::Kind::commit, .slot = slot, .bytes = 0};
}

void Tuner::Core::watch(const core::StepReport& report) {
  const bool counts = report.slot == schedule_.slot() && report.finite && !report.excluded && report.step_ms > 0;
  if (!counts) return;
  const auto finding = clock_.record(report);
  if (finding && finding->kind == Finding::Kind::straggler) {
    decide(What::straggler, outcome_.label, finding->rank);
  } else if (finding) {
    decide(finding->kind == Finding::Kind::link ? What::link : What::drift, outcome_.label, finding->log_shift);
  }
  if (left_out_until_ && step_ + kLead >= *left_out_until_) {
    decide(What::more_may_run, "", *std::exchange(left_out_until_, std::nullopt));
    return search_again();
  }
  if (!options_.retune) return;
  clock_.count(report.step_ms);
  if (std::exchange(has_new_content_, false)) return search_again();
  const bool is_alarm = finding && finding->kind != Finding::Kind::straggler;
  const bool is_audit_due = confirmed_ && (is_alarm || clock_.is_audit_due());
  if (!is_audit_due && !clock_.is_look_due()) return;
  if (const auto rank = finding ? std::nullopt : clock_.take_straggler()) {
    decide(What::straggler, outcome_.label, *rank);
  }
  scores_.clear();
  budget_ = Budget(options_.budget_steps, options_.budget_share);
  confirmed_ ? start_audit(is_alarm || clock_.is_look_due(), kFirstLook) : look_again();
}

// Searches without an audit: the set of strategies that may run, or the content of gradients, differs from the last
// search.
void Tuner::Core::search_again() {
  scores_.clear();
  budget_ = Budget(options_.budget_steps, options_.budget_share);
  contenders_.add_former_as_leaders(bans_);
  observe_again(Observing::Before::search);
}

void Tuner::Core::start_audit(bool has_cause, int pairs) {
  const core::Rng rng = rng_.fork("audit").fork(std::to_string(step_));
  phase_ =
      Auditing{.has_cause = has_cause, .confirmation = Confirmation(*confirmed_, {baseline_}, pairs, kAuditError, rng)};
  run(std::get<Auditing>(phase_).confirmation.next_blocks(), &Core::tested_block);
}

void Tuner::Core::audit(const std::vector<Score>& scores) {
  auto& [has_cause, confirmation] = std::get<Auditing>(phase_);
  confirmation.score(scores);
  if (!confirmation.is_over()) return run(confirmation.next_blocks(), &Core::tested_block);
  const Claim claim = confirmation.claim();
  const auto [faster_ms, slower_ms] = std::minmax(claim.baseline_ms, claim.committed_ms);
  const bool is_far_behind = slower_ms >= kFarBehind * faster_ms;
  if (claim.pairs == kFirstLook && !is_far_behind) return start_audit(has_cause, kAuditPairs);
  // Audits by the clock repeat, and in some of them a gain of a few percent seems to be gone. So the loss has to be
  // proven, in case of doubt by as many fresh pairs as a confirmation takes.
  const bool has_to_prove = !has_cause && !is_far_behind;
  const bool is_in_doubt = has_to_prove && claim.pairs == kAuditPairs && !is_worth(*confirmed_, claim.gain);
  if (is_in_doubt && budget_.allows(most_pairs(kAuditError) * kBlockSteps)) {
    return start_audit(has_cause, most_pairs(kAuditError));
  }
  knowledge_.baseline_ms = claim.baseline_ms;
  clock_.compared(baseline_, claim.committed_ms, claim.baseline_ms,
                  Budget::most_cost_ms(options_.budget_share, claim.baseline_ms));
  decide(What::audit, slots_.at(*confirmed_).candidate->label, claim.gain);
  if (!is_worth(*confirmed_, has_to_prove ? claim.gain_high : claim.gain)) drop_committed(claim.gain);
  look_again();
}

void Tuner::Core::retire_committed() {
  contenders_.retire(*slots_.at(*confirmed_).candidate);
  slots_.set_permanent(*confirmed_, false);
  confirmed_.reset();
}

// It is no longer faster than the baseline, or by too little for its loss.
void Tuner::Core::drop_committed(double gain) {
  decide(What::drop_committed, slots_.at(*confirmed_).candidate->label, gain);
  forget_committed();
}

void Tuner::Core::forget_committed() {
  retire_committed();
  clock_.dropped(Budget::most_cost_ms(options_.budget_share, knowledge_.baseline_ms));
  const Outcome before = std::exchange(outcome_, Outcome());
  outcome_.baseline_ms = knowledge_.baseline_ms;
  outcome_.steps = before.steps;
  outcome_.cost_ms = before.cost_ms;
  outcome_.first_commit = before.first_commit;
}

// Step times may not show that the content of gradients has changed since a strategy was chosen.
void Tuner::Core::learn_table(const core::GradientTable& table) {
  const auto& before = knowledge_.table.tensors;
  for (size_t t = 0; t < table.tensors.size() && is_watching(); ++t) {
    const core::TensorInfo& tensor = table.tensors[t];
    if (t >= before.size() || tensor.content == before[t].content) continue;
    decide(What::density, tensor.name, std::log(tensor.content.of_all / before[t].content.of_all));
    has_new_content_ = true;
  }
  knowledge_.table = table;
}

// Checks if another strategy is the best by now, once it is time to look.
void Tuner::Core::look_again() {
  if (!clock_.is_look_due()) return conclude(confirmed_.value_or(baseline_));
  observe_again(Observing::Before::looking);
}

void Tuner::Core::observe_again(Observing::Before before) {
  decide(What::look_again, slots_.at(confirmed_.value_or(baseline_)).candidate->label, looks_++);
  slots_.forget_times();
  knowledge_.timed.clear();
  observation_ = Observation(baselines_);
  phase_ = Observing{before};
  if (confirmed_) schedule_.add(trial_block(*confirmed_));
  run_baselines();
}

// Decides on a new search: at once if the job has changed, otherwise if the known strategies rank differently.
void Tuner::Core::rank_again() {
  const double moved = clock_.moved();
  const bool has_moved = std::abs(moved) > kMoved;
  if (!has_moved && contenders_.has_measured()) return race_known();
  if (has_moved) decide(What::relation_changed, slots_.at(confirmed_.value_or(baseline_)).candidate->label, moved);
  contenders_.add_former_as_leaders(bans_);
  start_search();
}

// The first proposals of a policy that plans, given the present times of the baselines and of the strategy in force,
// if it expects them to be faster. Policies without a model predict nothing.
std::vector<policies::Candidate> Tuner::Core::foreseen() {
  const double now_ms = slots_.at(confirmed_.value_or(baseline_)).step_ms.value_or(knowledge_.baseline_ms);
  std::vector<policies::Candidate> faster;
  for (const policies::Candidate& proposed : make_policy_()->propose(known_for_search()).candidates) {
    if (faster.size() == kMostForeseen || !proposed.predicted_ms || *proposed.predicted_ms >= now_ms) continue;
    if (auto candidate = bans_.admitted(proposed)) faster.push_back(std::move(*candidate));
  }
  return faster;
}

void Tuner::Core::race_known() {
  std::vector<policies::Candidate> arms = foreseen();
  const core::Strategy* committed = confirmed_ ? &slots_.at(*confirmed_).candidate->strategy : nullptr;
  for (policies::Candidate& known : contenders_.known(committed, bans_)) arms.push_back(std::move(known));
  std::vector<int32_t> slots;  // besides the committed strategy
  for (const policies::Candidate& candidate : arms) {
    if (slots.size() == kMostFinalists) break;
    const int32_t slot = slots_.slot_of(candidate);
    if (std::ranges::find(slots, slot) == slots.end()) slots.push_back(slot);
  }
  start_race(Racing::Among::known, std::move(slots));
}

void Tuner::Core::judge_ranking() {
  const Race& race = *std::get<Racing>(phase_).race;
  const auto winner = race.winner();
  const int32_t now = confirmed_.value_or(baseline_);
  const int32_t otherwise =
      baseline_ == clock_.audited_baseline() ? now : baseline_;  // it just passed an audit against the same baseline
  const int32_t best = winner ? winner->slot : otherwise;
  const bool holds = best == now;
  decide(holds ? What::ranking_holds : What::ranking_changed, slots_.at(best).candidate->label, 0);
  if (holds) return settle("nothing that is known looks faster");
  if (!winner) drop_committed(0);
  for (const int32_t slot : winner ? race.slots_left() : std::vector<int32_t>()) {
    if (slot != now) contenders_.add_leader(*slots_.at(slot).candidate);
  }
  start_search();
}

}  // namespace gradtune::tuner
