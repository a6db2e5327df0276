// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
#include "tuner/searching.h"

#include <algorithm>
#include <utility>

#include "tuner/blocks.h"
#include "tuner/context.h"
#include "tuner/phase.h"

namespace gradtune::tuner {
namespace {

using What = Decision::What;

constexpr int kWorthWaiting = 100;  // steps: about as many as a search takes
constexpr int kMostAsked = 64;      // consecutive proposals none of which may run

// The slots of those candidates that may run.
std::vector<int32_t> slots_of(Context& context, const policies::Proposal& proposal) {
  std::vector<int32_t> slots;
  for (const policies::Candidate& proposed : proposal.candidates) {
    const auto candidate = context.bans.admitted(proposed);
    if (!candidate) continue;
    const int earliest = earliest_step(context.options, context.knowledge.traits, candidate->strategy);
    if (context.search.leaves_out(earliest)) continue;
    const int32_t slot = context.slots.slot_of(*candidate);
    context.contenders.proposed(slot, core::hash(proposed.strategy));
    const bool is_new = std::find(slots.begin(), slots.end(), slot) == slots.end();
    if (is_new && (!proposal.final || slots.size() < kMostFinalists)) slots.push_back(slot);
  }
  return slots;
}

}  // namespace

policies::Knowledge known_for_search(Context& context) {
  policies::Knowledge known = context.knowledge;
  std::erase_if(known.codecs, [&](const core::CompressorSpec& codec) {
    return context.search.leaves_out(earliest_step(context.options, context.knowledge.traits, codec));
  });
  return known;
}

NextPhase Searching::begin(Context& context) {
  policy_ = context.make_policy();
  core::check(policy_ != nullptr, "a tuner needs a policy");
  context.contenders.start_search();
  context.clock.searched();
  context.search.begin(context.diary.step + kWorthWaiting);
  return ask(context);
}

NextPhase Searching::advance(Context& context, const std::vector<Score>&) { return ask(context); }

NextPhase Searching::ask(Context& context) {
  policies::Proposal proposal;
  std::vector<int32_t> slots;
  // If nothing in a proposal may run, the policy gets no measurements and continues with what it knows.
  for (int asked = 0; slots.empty() && !proposal.final && asked < kMostAsked; ++asked) {
    proposal = policy_->propose(known_for_search(context));
    slots = slots_of(context, proposal);
  }
  if (proposal.final || slots.empty()) return start_race(context, Racing::Among::found, std::move(slots));
  for (const int32_t slot : slots) {
    if (context.slots.at(slot).is_ready) {
      context.schedule.add(trial_block(context, slot));
    } else {
      context.prepare(slot);
    }
  }
  return {};
}

void Searching::learn(Context& context, const Score& score) {
  if (!context.slots.contains(score.slot)) return;
  const policies::Candidate& candidate = context.candidate(score.slot);
  if (candidate.predicted_ms) context.decide(What::predict, candidate.label, *candidate.predicted_ms);
  context.decide(What::measure, candidate.label, score.step_ms.value_or(0));
  if (!score.step_ms) return context.slots.release(score.slot);
  const uint64_t hash = context.contenders.proposed_hash(score.slot);
  policy_->learn({.strategy_hash = hash, .step_ms = *score.step_ms, .steps = score.steps});
  context.contenders.measured(candidate, *score.step_ms);
  context.search.is_any_measured = true;
  context.slots.release_slowest_beyond(kMostFinalists);  // slots are memory on every rank
}

bool Searching::follow(Context& context, const std::optional<SlotTable::Prepared>& prepared) {
  if (!prepared && !context.slots.preparing()) return false;
  const int32_t slot = prepared ? prepared->slot : *context.slots.preparing();
  const bool is_ready = prepared && prepared->entry.is_ready;
  const bool is_hopeful = !prepared && context.slots.waited() == 1;
  if (is_hopeful || (is_ready && !is_trial_ahead_)) context.schedule.add(trial_block(context, slot));
  const bool did_not_switch = is_trial_ahead_ && !is_ready && context.schedule.take_back(slot);
  is_trial_ahead_ = is_hopeful;
  return did_not_switch;
}

}  // namespace gradtune::tuner
