// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
#include "tuner/ranking.h"

#include <algorithm>
#include <cmath>
#include <utility>
#include <vector>

#include "tuner/committed.h"
#include "tuner/context.h"
#include "tuner/phase.h"

namespace gradtune::tuner {
namespace {

using What = Decision::What;

// If the speed of the committed strategy relative to the baseline moved this far since the search (as a logarithm),
// strategies that were not measured then may be the best.
constexpr double kMoved = 0.2;

// Most strategies predicted by a policy that race before a new search.
constexpr size_t kMostForeseen = 2;

// The first proposals of a policy that plans, given the present times of the baselines and of the strategy in force,
// if it expects them to be faster. Policies without a model predict nothing.
std::vector<policies::Candidate> foreseen(Context& context) {
  const double now_ms = context.slots.at(context.kept()).step_ms.value_or(context.knowledge.baseline_ms);
  std::vector<policies::Candidate> faster;
  for (const policies::Candidate& proposed : context.make_policy()->propose(known_for_search(context)).candidates) {
    if (faster.size() == kMostForeseen || !proposed.predicted_ms || *proposed.predicted_ms >= now_ms) continue;
    if (auto candidate = context.bans.admitted(proposed)) faster.push_back(std::move(*candidate));
  }
  return faster;
}

Racing race_known(Context& context) {
  std::vector<policies::Candidate> arms = foreseen(context);
  const core::Strategy* committed = context.committed ? &context.candidate(*context.committed).strategy : nullptr;
  for (policies::Candidate& known : context.contenders.known(committed, context.bans)) arms.push_back(std::move(known));
  std::vector<int32_t> slots;  // besides the committed strategy
  for (const policies::Candidate& candidate : arms) {
    if (slots.size() == kMostFinalists) break;
    const int32_t slot = context.slots.slot_of(candidate);
    if (std::ranges::find(slots, slot) == slots.end()) slots.push_back(slot);
  }
  return start_race(context, Racing::Among::known, std::move(slots));
}

}  // namespace

NextPhase rank_again(Context& context) {
  const double moved = context.clock.moved();
  const bool has_moved = std::abs(moved) > kMoved;
  if (!has_moved && context.contenders.has_measured()) return race_known(context);
  if (has_moved) context.decide(What::relation_changed, context.candidate(context.kept()).label, moved);
  context.contenders.add_former_as_leaders(context.bans);
  return Searching();
}

NextPhase judge_ranking(Context& context, const Race& race) {
  const auto winner = race.winner();
  const int32_t now = context.kept();
  const int32_t baseline = context.baselines.faster;
  const int32_t otherwise =
      baseline == context.clock.audited_baseline() ? now : baseline;  // it just passed an audit against the same one
  const int32_t best = winner ? winner->slot : otherwise;
  const bool holds = best == now;
  context.decide(holds ? What::ranking_holds : What::ranking_changed, context.candidate(best).label, 0);
  if (holds) return settle(context, "nothing that is known looks faster");
  if (!winner) drop_committed(context, 0);
  for (const int32_t slot : winner ? race.slots_left() : std::vector<int32_t>()) {
    if (slot != now) context.contenders.add_leader(context.candidate(slot));
  }
  return Searching();
}

}  // namespace gradtune::tuner
