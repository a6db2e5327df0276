// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// After a decision: alarms, audits of the baseline, and whether what was best is so still.
#include <algorithm>
#include <cmath>
#include <utility>

#include "tuner/tuner_core.h"

namespace gradtune::tuner {
namespace {

// An audit: two pairs are enough where one of both is far behind; otherwise as many as tell a few percent.
constexpr int kFirstLook = 2, kAuditPairs = 6;
constexpr double kAuditError = 0.05;  // nothing is claimed by it
constexpr double kFarBehind = 1.5;    // times the other's step

// Once what was committed is to the baseline what it was not when it was searched, by so much as a logarithm, others
// that were not measured then may be the best.
constexpr double kMoved = 0.2;

// Of what a policy foresees, that races before there is a new search.
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
  // After an audit that it held in, what moved meanwhile is to be noticed yet.
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

// Without an audit: what may run or what gradients hold is not what the last search knew.
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
  // By the clock audits come again and again, and in some of them what gains a few percent looks as if it did not: that
  // has to be proven, where it is in doubt by as many fresh pairs as a confirmation takes.
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

// It is not faster than the baseline any more, or by too little for what it loses.
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

// Step times need not show that gradients have more or less in them than when a strategy was chosen.
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

// Whether something else is best by now, once it is time to look.
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

// Whether there is a new search: at once where the job is another one by now, otherwise if what is known ranks anew.
void Tuner::Core::rank_again() {
  const double moved = clock_.moved();
  const bool has_moved = std::abs(moved) > kMoved;
  if (!has_moved && contenders_.has_measured()) return race_known();
  if (has_moved) decide(What::relation_changed, slots_.at(confirmed_.value_or(baseline_)).candidate->label, moved);
  contenders_.add_former_as_leaders(bans_);
  start_search();
}

// What a policy that plans would try first, knowing what baselines and what is in force take by now, if it expects that
// to be faster. Policies without a model foresee nothing.
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
  std::vector<int32_t> slots;  // beside what is committed
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
      baseline_ == clock_.audited_baseline() ? now : baseline_;  // it just held against the same baseline
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
