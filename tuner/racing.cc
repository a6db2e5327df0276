// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
#include "tuner/racing.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "tuner/blocks.h"
#include "tuner/committed.h"
#include "tuner/context.h"
#include "tuner/phase.h"
#include "tuner/ranking.h"

namespace gradtune::tuner {
namespace {

using What = Decision::What;

constexpr double kBehind = 1.25;  // factor over the fastest finalist beyond which an arm is left out
constexpr double kNear = 1.01;    // factor over the fastest arm within which one bad block puts no arm out

Race::Arm arm(const Context& context, int32_t slot, double fastest_ms) {
  const Entry& entry = context.slots.at(slot);
  return {.slot = slot,
          .fidelity = entry.fidelity,
          .buckets = entry.candidate->strategy.buckets.size(),
          .is_running = slot == context.committed,
          .was_near = entry.step_ms && *entry.step_ms <= kNear * fastest_ms};
}

double fastest_ms(const Context& context, const std::vector<int32_t>& slots) {
  double best_ms = std::numeric_limits<double>::infinity();
  for (const int32_t slot : slots) best_ms = std::min(best_ms, context.slots.at(slot).step_ms.value_or(best_ms));
  return best_ms;
}

void leave_out_slow_ones(Context& context, std::vector<int32_t>& finalists) {
  const double best_ms = fastest_ms(context, finalists);
  std::erase_if(finalists, [&](int32_t slot) {
    const auto step_ms = context.slots.at(slot).step_ms;
    const double behind = step_ms ? *step_ms / best_ms : 1;
    if (!context.baselines.contains(slot) && behind <= kBehind && !context.is_over(slot)) return false;
    context.decide(What::eliminate, context.candidate(slot).label, std::log(behind));
    return true;
  });
}

// They keep their places whatever the search found.
std::vector<int32_t> holders_of_places(Context& context) {
  std::vector<int32_t> holders;
  if (context.committed) holders.push_back(*context.committed);
  for (const policies::Candidate& leader : context.contenders.leaders()) {
    const int32_t slot = context.slots.slot_of(leader);
    if (std::ranges::find(holders, slot) == holders.end()) holders.push_back(slot);
  }
  return holders;
}

}  // namespace

Racing start_race(Context& context, Racing::Among among, std::vector<int32_t> finalists) {
  leave_out_slow_ones(context, finalists);
  const std::vector<int32_t> holders = holders_of_places(context);
  std::erase_if(finalists, [&](int32_t slot) { return std::ranges::find(holders, slot) != holders.end(); });
  finalists.resize(std::min(finalists.size(), kMostFinalists - holders.size()));  // drops the last ones
  finalists.insert(finalists.end(), holders.begin(), holders.end());
  context.slots.release_all_but(finalists);
  for (const int32_t slot : finalists) context.prepare(slot);
  return {among, std::move(finalists)};
}

Racing::Racing(Among among, std::vector<int32_t> finalists) : among_(among), finalists_(std::move(finalists)) {}

NextPhase Racing::begin(Context& context) {
  if (!context.slots.is_idle()) return {};
  return advance(context, {});
}

NextPhase Racing::advance(Context& context, const std::vector<Score>& scores) {
  race_ ? score(context, scores) : start(context);
  const bool is_ranking = among_ == Among::known;  // a ranking needs no confirmation
  if (race_->is_over() || (!is_ranking && !leaves_room(context))) {
    return is_ranking ? judge_ranking(context, *race_) : confirm_winner(context);
  }
  run_pairs(context, race_->next_round());
  return {};
}

void Racing::start(const Context& context) {
  std::erase_if(finalists_, [&](int32_t slot) {
    const bool was_prepared = context.slots.contains(slot);
    return !was_prepared || context.is_over(slot);
  });
  const int32_t baseline = context.baselines.faster;
  const double best_ms = std::min(fastest_ms(context, finalists_), fastest_ms(context, {baseline}));
  std::vector<Race::Arm> arms;
  for (const int32_t slot : finalists_) arms.push_back(arm(context, slot, best_ms));
  race_.emplace(arm(context, baseline, best_ms), arms, context.rng.fork("race"));
}

void Racing::score(Context& context, const std::vector<Score>& scores) {
  for (const Race::Eliminated& out : race_->score(scores)) {
    context.decide(What::eliminate, context.candidate(out.slot).label, out.behind);
    context.slots.release(out.slot);
  }
}

// Tells if the budget has room for another round and for a confirmation after it. One round less compares the arms
// less well; without a confirmation nothing is kept.
bool Racing::leaves_room(const Context& context) const {
  const auto arms = static_cast<int>(race_->slots_left().size());
  const int pairs = fewest_pairs(allowed_error(context.confirmations), context.baselines.compared().size());
  const int steps = kLead + (1 + arms) * kBlockSteps + steps_to_confirm(context, pairs);
  return race_->progress() == 0 || context.budget.allows(steps);
}

NextPhase Racing::confirm_winner(Context& context) const {
  const bool is_imported = among_ == Among::imported;
  const auto winner = race_->winner();
  if (!winner) return fall_back(context, is_imported, context.search.why_nothing());
  context.decide(What::race_won, context.candidate(winner->slot).label, winner->effect);
  if (winner->slot == context.committed) return settle(context, "");
  const double error = allowed_error(context.confirmations);
  context.slots.release_all_but({winner->slot});
  const auto origin = is_imported ? Confirming::Origin::imported : Confirming::Origin::race;
  return Confirming(origin, winner->slot, pairs_for(*winner, error, context.baselines.compared().size()));
}

}  // namespace gradtune::tuner
