// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
#include "tuner/race.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <tuple>

#include "engine/core/median.h"
#include "tuner/statistics.h"

namespace gradtune::tuner {
namespace {

constexpr int kRounds = 3;  // with blocks of 4 scored steps, 12 for each finalist
constexpr size_t kFinalists = 2;
constexpr double kAborted = 2.0;  // factor over the best block of the round
constexpr double kWorthIt = 0.01;

// An arm that far behind does not recover: the distance is beyond all drift between two blocks of a round, or once
// the noise is known, beyond what noise explains.
constexpr double kHopeless = 0.22;
constexpr double kStandardErrors = 4;

}  // namespace

Race::Race(const Arm& baseline, const std::vector<Arm>& arms, core::Rng rng) : baseline_{baseline, {}}, rng_(rng) {
  for (const Arm& arm : arms) arms_.push_back({arm, {}});
}

std::vector<int32_t> Race::next_round() {
  std::vector<int32_t> slots = {baseline_.arm.slot};
  for (const State& state : arms_) slots.push_back(state.arm.slot);
  rng_.shuffle(slots);
  return slots;
}

std::vector<Race::Eliminated> Race::score(const std::vector<Score>& round) {
  std::map<int32_t, double> logs;
  for (const Score& score : round) {
    if (score.step_ms) logs[score.slot] = std::log(*score.step_ms);
  }
  if (!logs.contains(baseline_.arm.slot)) return {};
  ++rounds_;
  baseline_.logs.push_back(logs[baseline_.arm.slot]);

  std::vector<Eliminated> eliminated;
  std::vector<State> scored;
  double best_block = baseline_.logs.back();
  for (State& state : arms_) {
    if (!logs.contains(state.arm.slot)) {
      eliminated.push_back({state.arm.slot, 0});
      continue;
    }
    state.logs.push_back(logs[state.arm.slot]);
    best_block = std::min(best_block, state.logs.back());
    scored.push_back(std::move(state));
  }
  const size_t most = std::max(kFinalists, (arms_.size() + 1) / 2);
  arms_ = std::move(scored);
  compare();
  arms_ = in_order_of_preference(std::move(arms_));
  double best = baseline_.score;
  for (const State& state : arms_) best = std::min(best, state.score);
  const double hopeless = std::min(kHopeless, kTie + kStandardErrors * noise() / std::sqrt(rounds_));
  std::vector<State> kept;
  for (State& state : arms_) {
    const double behind = state.score - best;
    const bool may_win = behind <= hopeless && state.logs.back() <= best_block + std::log(kAborted);
    if (state.arm.was_near || (kept.size() < most && may_win)) {
      kept.push_back(std::move(state));
    } else {
      eliminated.push_back({state.arm.slot, behind});
    }
  }
  arms_ = std::move(kept);
  compare();
  return eliminated;
}

void Race::compare() {
  std::vector<State*> states = {&baseline_};
  for (State& state : arms_) states.push_back(&state);
  std::vector<std::vector<double>> ratios(states.size());
  for (size_t round = 0; round < static_cast<size_t>(rounds_); ++round) {
    std::vector<double> logs;
    for (const State* state : states) logs.push_back(state->logs[round]);
    const double middle = core::median(logs);
    for (size_t s = 0; s < states.size(); ++s) ratios[s].push_back(logs[s] - middle);
  }
  for (size_t s = 0; s < states.size(); ++s) states[s]->score = core::median(ratios[s]);
}

// Arms that tie with the best are ordered by their other costs, then the others by speed.
std::vector<Race::State> Race::in_order_of_preference(std::vector<State> states) {
  double best = std::numeric_limits<double>::infinity();
  for (const State& state : states) best = std::min(best, state.score);
  const auto key = [&](const State& state) {
    const bool ties = state.score <= best + kTie;
    return std::tuple(!ties, ties ? state.arm.fidelity : core::Fidelity::lossy,
                      state.score - (state.arm.is_running ? kNearTie : 0));
  };
  std::stable_sort(states.begin(), states.end(), [&](const State& a, const State& b) { return key(a) < key(b); });
  return states;
}

// Noise of a pair of blocks: the rest of the logarithms without each arm's and each round's own effect.
double Race::noise() const {
  std::vector<const State*> states = {&baseline_};
  for (const State& state : arms_) states.push_back(&state);
  const double freedom = static_cast<double>(states.size() - 1) * (rounds_ - 1);
  if (freedom <= 0) return std::numeric_limits<double>::infinity();
  double squares = 0;
  for (size_t round = 0; round < static_cast<size_t>(rounds_); ++round) {
    std::vector<double> residuals;
    for (const State* state : states) residuals.push_back(state->logs[round] - moments(state->logs).mean);
    const Moments of_round = moments(residuals);
    squares += of_round.sd * of_round.sd * static_cast<double>(states.size() - 1);
  }
  return std::sqrt(2 * squares / freedom);
}

bool Race::is_over() const { return arms_.empty() || rounds_ >= kRounds; }

double Race::progress() const { return static_cast<double>(rounds_) / kRounds; }

std::vector<int32_t> Race::slots_left() const {
  std::vector<int32_t> slots;
  for (const State& state : arms_) slots.push_back(state.arm.slot);
  return slots;
}

std::optional<Race::Winner> Race::winner() const {
  if (rounds_ == 0) return {};
  const auto effect = [&](const State& state) { return baseline_.score - state.score; };
  std::vector<State> worthy;
  for (const State& state : arms_) {
    const bool is_lossier = state.arm.fidelity > baseline_.arm.fidelity;
    if (effect(state) > (is_lossier ? kTie : kWorthIt)) worthy.push_back(state);
  }
  if (worthy.empty()) return {};
  worthy = in_order_of_preference(worthy);
  State best = worthy[0];
  for (const State& state : worthy) {
    const bool is_near = state.arm.fidelity == worthy[0].arm.fidelity && state.score <= worthy[0].score + kNearTie;
    if (is_near && !best.arm.is_running && state.arm.buckets < best.arm.buckets) best = state;
  }
  return Winner{best.arm.slot, effect(best), noise(), rounds_};
}

}  // namespace gradtune::tuner
