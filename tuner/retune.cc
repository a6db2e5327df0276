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
constexpr double kAuditError = 0.05;   // nothing is claimed by it
constexpr double kFarBehind = 1.5;     // times the other's step
constexpr double kAuditShare = 0.003;  // of the time, that audits without an alarm may cost

// Once what was committed is to the baseline what it was not when it was searched, by so much as a logarithm, others that
// were not measured then may be the best.
constexpr double kMoved = 0.2;

// What races again before there is a new search, beside what is in force.
constexpr size_t kMostForeseen = 2, kMostFormer = 2;
constexpr size_t kMostKinds = 5;  // of compression

}  // namespace

void Tuner::Core::conclude(int32_t slot) {
  const double level_ms = slots_.at(slot).step_ms.value_or(outcome_.baseline_ms);
  const bool is_watched_on = stage_ == Stage::audit && slot == confirmed_;  // what moved meanwhile is to be noticed yet
  if (stage_ == Stage::audit || (is_repairing_ && !confirmed_)) {
    audit_price_ms_ = budget_.cost_ms(level_ms);
  } else {
    cooldown_.begin(budget_.cost_ms(level_ms), level_ms, knowledge_.baseline_ms - level_ms);
    audit_price_ms_ = kFirstLook * kBlockSteps * knowledge_.baseline_ms;
    has_decided_ = true;
  }
  outcome_.steps += budget_.steps();
  if (observation_.is_over()) outcome_.cost_ms += budget_.cost_ms(knowledge_.baseline_ms);
  outcome_.label = slots_.at(slot).candidate->label;
  race_.reset();
  confirmation_.reset();
  stage_ = Stage::watch;
  importing_ = is_ranking_ = is_trial_ahead_ = is_repairing_ = false;
  leaders_.clear();
  schedule_.stop(slot);
  slots_.release_all_but({slot});
  at_once_ = {.kind = Command::Kind::commit, .slot = slot, .bytes = 0};
  if (!is_watched_on) watch_ = Watch();
  audit_allowance_ms_ = 0;
}

void Tuner::Core::watch(const core::StepReport& report) {
  const bool counts = report.slot == schedule_.slot() && report.finite && !report.excluded && report.step_ms > 0;
  if (!counts) return;
  const auto finding = watch_.record(report);
  if (finding && finding->kind == Finding::Kind::straggler) {
    decide(What::straggler, outcome_.label, finding->rank);
  } else if (finding) {
    decide(finding->kind == Finding::Kind::link ? What::link : What::drift, outcome_.label, finding->log_shift);
    cooldown_.alarm();
  }
  if (!options_.retune) return;
  cooldown_.count(report.step_ms);
  audit_allowance_ms_ += kAuditShare * report.step_ms;
  const bool is_alarm = finding && finding->kind != Finding::Kind::straggler;
  const bool is_audit_due = confirmed_ && (is_alarm || audit_allowance_ms_ >= audit_price_ms_);
  if (!is_audit_due && !cooldown_.is_over()) return;
  if (const auto rank = finding ? std::nullopt : watch_.straggler()) {
    decide(What::straggler, outcome_.label, *rank);
    watch_ = Watch();  // of what is so by now
  }
  scores_.clear();
  budget_ = Budget(options_.budget_steps, options_.budget_share);
  has_cause_ = is_alarm || cooldown_.is_over();
  confirmed_ ? start_audit(kFirstLook) : look_again();
}

void Tuner::Core::start_audit(int pairs) {
  stage_ = Stage::audit;
  confirmation_.emplace(*confirmed_, std::vector{baseline_}, pairs, kAuditError,
                        rng_.fork("audit").fork(std::to_string(step_)));
  run(confirmation_->next_blocks(), &Core::tested_block);
}

void Tuner::Core::audit(const std::vector<Score>& scores) {
  confirmation_->score(scores);
  if (!confirmation_->is_over()) return run(confirmation_->next_blocks(), &Core::tested_block);
  const Claim claim = confirmation_->claim();
  const auto [faster_ms, slower_ms] = std::minmax(claim.baseline_ms, claim.winner_ms);
  const bool is_far_behind = slower_ms >= kFarBehind * faster_ms;
  if (claim.pairs == kFirstLook && !is_far_behind) return start_audit(kAuditPairs);
  // By the clock audits come again and again, and in some of them what gains a few percent looks as if it did not: that
  // has to be proven, where it is in doubt by as many fresh pairs as a confirmation takes.
  const bool has_to_prove = !has_cause_ && !is_far_behind;
  const bool is_in_doubt = has_to_prove && claim.pairs == kAuditPairs && !is_worth(*confirmed_, claim.gain);
  if (is_in_doubt && budget_.allows(most_pairs(kAuditError) * kBlockSteps)) return start_audit(most_pairs(kAuditError));
  audited_ = baseline_;
  audited_relation_ = std::log(claim.winner_ms / claim.baseline_ms);
  knowledge_.baseline_ms = claim.baseline_ms;
  cooldown_.reprice(Budget::most_cost_ms(options_.budget_share, claim.baseline_ms),
                    claim.baseline_ms - claim.winner_ms);
  decide(What::audit, slots_.at(*confirmed_).candidate->label, claim.gain);
  if (!is_worth(*confirmed_, has_to_prove ? claim.gain_high : claim.gain)) drop_committed(claim.gain);
  look_again();
}

// What was confirmed once may be the best again, when what made it so comes back.
void Tuner::Core::retire_committed() {
  const Entry& retired = slots_.at(*confirmed_);
  std::erase_if(former_, [&](const policies::Candidate& other) { return core::hash(other.strategy) == retired.hash; });
  former_.insert(former_.begin(), *retired.candidate);
  if (former_.size() > kMostFormer) former_.pop_back();
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
  cooldown_.dropped(Budget::most_cost_ms(options_.budget_share, knowledge_.baseline_ms));
  const Outcome before = std::exchange(outcome_, Outcome());
  outcome_.baseline_ms = knowledge_.baseline_ms;
  outcome_.steps = before.steps;
  outcome_.cost_ms = before.cost_ms;
  outcome_.first_commit = before.first_commit;
}

// Whether something else is best by now, once it is time to look.
void Tuner::Core::look_again() {
  if (!cooldown_.is_over()) return conclude(confirmed_.value_or(baseline_));
  decide(What::look_again, slots_.at(confirmed_.value_or(baseline_)).candidate->label, looks_++);
  confirmation_.reset();
  slots_.forget_times();
  knowledge_.timed.clear();
  observation_ = Observation(baselines_);
  stage_ = Stage::observe;
  if (confirmed_) schedule_.add(trial_block(*confirmed_));
  run_baselines();
}

// Whether there is a new search: at once where the job is another one by now, otherwise if what is known ranks anew.
void Tuner::Core::rank_again() {
  const double moved = audited_relation_ - searched_relation_;
  const bool has_moved = std::abs(moved) > kMoved;
  if (!has_moved && !kinds_.empty()) return race_kinds_again();
  if (has_moved) decide(What::relation_changed, slots_.at(confirmed_.value_or(baseline_)).candidate->label, moved);
  for (const policies::Candidate& former : former_) {
    if (auto candidate = admitted(former)) leaders_.push_back(std::move(*candidate));
  }
  start_search();
}

// What a policy that plans would try first, knowing what baselines and what is in force take by now, if it expects that
// to be faster. Policies without a model foresee nothing.
std::vector<policies::Candidate> Tuner::Core::foreseen() const {
  const double now_ms = slots_.at(confirmed_.value_or(baseline_)).step_ms.value_or(knowledge_.baseline_ms);
  std::vector<policies::Candidate> faster;
  for (const policies::Candidate& proposed : make_policy_()->propose(knowledge_).candidates) {
    if (faster.size() == kMostForeseen || !proposed.predicted_ms || *proposed.predicted_ms >= now_ms) continue;
    if (auto candidate = admitted(proposed)) faster.push_back(std::move(*candidate));
  }
  return faster;
}

// The best of each kind, and the next ones of the kind in force: with the link the best partition moves as well, and
// may be one that was not measured yet, or one of long ago.
void Tuner::Core::race_kinds_again() {
  std::vector<policies::Candidate> arms = foreseen();
  for (const policies::Candidate& former : former_) {
    if (auto candidate = admitted(former)) arms.push_back(std::move(*candidate));
  }
  std::vector<const Best*> best;
  for (const auto& [kind, found] : kinds_) best.push_back(&found.front());
  std::ranges::sort(best, {}, &Best::step_ms);
  if (best.size() > kMostKinds) best.resize(kMostKinds);
  if (confirmed_) {
    const auto own = kinds_.find(kind_of(slots_.at(*confirmed_).candidate->strategy));
    for (size_t i = 1; own != kinds_.end() && i < own->second.size(); ++i) best.push_back(&own->second[i]);
  }
  for (const Best* found : best) arms.push_back(found->candidate);
  std::vector<int32_t> slots;  // beside what is committed
  for (const policies::Candidate& candidate : arms) {
    if (slots.size() == kMostFinalists) break;
    const int32_t slot = slots_.slot_of(candidate);
    if (std::ranges::find(slots, slot) == slots.end()) slots.push_back(slot);
  }
  is_ranking_ = true;
  start_race(std::move(slots));
}

void Tuner::Core::judge_ranking() {
  const auto winner = race_->winner();
  const int32_t now = confirmed_.value_or(baseline_);
  const int32_t otherwise = baseline_ == audited_ ? now : baseline_;  // it just held against the same baseline
  const int32_t best = winner ? winner->slot : otherwise;
  const bool holds = best == now;
  decide(holds ? What::ranking_holds : What::ranking_changed, slots_.at(best).candidate->label, 0);
  if (holds) return settle("the ranking holds");
  if (!winner) drop_committed(0);
  for (const int32_t slot : winner ? race_->slots_left() : std::vector<int32_t>()) {
    if (slot != now) leaders_.push_back(*slots_.at(slot).candidate);
  }
  race_.reset();
  is_ranking_ = false;
  start_search();
}

}  // namespace gradtune::tuner
