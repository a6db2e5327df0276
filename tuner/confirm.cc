// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
#include "tuner/confirm.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>

#include "engine/core/result.h"
#include "tuner/statistics.h"

namespace gradtune::tuner {
namespace {

constexpr int kUsualMost = 12;
constexpr int kPairs[] = {6, 8, 10, kUsualMost};
constexpr double kPower = 0.85;
constexpr double kFirstError = 0.04, kLaterErrors = 0.01;
constexpr double kTooLow = 0.025;  // the upper bound

std::vector<int32_t> joined(int32_t winner, const std::vector<int32_t>& baselines) {
  std::vector<int32_t> slots = {winner};
  slots.insert(slots.end(), baselines.begin(), baselines.end());
  return slots;
}

}  // namespace

double allowed_error(int earlier_confirmations) {
  const double k = earlier_confirmations;
  return earlier_confirmations == 0 ? kFirstError : kLaterErrors / (k * (k + 1));
}

int most_pairs(double error) {
  constexpr int kSpare = 2;  // otherwise every single pair would have to look faster
  return std::clamp(fewest_signed(error) + kSpare, kUsualMost, kMostSigned);
}

int fewest_pairs(double error, size_t baselines) {
  return fewest_signed(std::min(error, kTooLow / static_cast<double>(baselines)));
}

int pairs_for(const Race::Winner& winner, double error, size_t baselines) {
  const double effect = winner.effect - winner.noise / std::sqrt(winner.rounds);
  const int fewest = fewest_pairs(error, baselines);
  for (const int pairs : kPairs) {
    if (pairs >= fewest && power(pairs, effect, winner.noise, error) >= kPower) return pairs;
  }
  return most_pairs(error);
}

Confirmation::Confirmation(int32_t winner, const std::vector<int32_t>& baselines, int pairs, double error,
                           core::Rng rng)
    : slots_(joined(winner, baselines)), wanted_(pairs), error_(error), rng_(rng) {
  core::check(!baselines.empty(), "a winner is compared with something");
}

std::vector<int32_t> Confirmation::next_blocks() {
  std::vector<int32_t> blocks;
  for (int pair = static_cast<int>(pairs_.size()); pair < wanted_; ++pair) {
    std::vector<int32_t> slots = slots_;
    rng_.shuffle(slots);
    blocks.insert(blocks.end(), slots.begin(), slots.end());
  }
  return blocks;
}

void Confirmation::score(const std::vector<Score>& blocks) {
  core::check(blocks.size() % slots_.size() == 0, "blocks come in pairs");
  for (size_t begin = 0; begin < blocks.size(); begin += slots_.size()) {
    std::map<int32_t, double> logs;
    for (size_t i = begin; i < begin + slots_.size(); ++i) {
      if (blocks[i].step_ms) logs[blocks[i].slot] = std::log(*blocks[i].step_ms);
    }
    if (logs.size() < slots_.size()) continue;
    pairs_.emplace_back();
    for (const int32_t slot : slots_) pairs_.back().push_back(logs.at(slot));
  }
}

Claim Confirmation::claim() const {
  core::check(is_over(), "a claim is made once, at the end");
  const auto as_gain = [](double log_ratio) { return -std::expm1(-log_ratio); };  // keeps the sign
  const size_t baselines = slots_.size() - 1;
  Claim claim;
  claim.pairs = wanted_;
  claim.gain = claim.gain_low = claim.gain_high = std::numeric_limits<double>::infinity();
  for (size_t baseline = 1; baseline <= baselines; ++baseline) {
    std::vector<double> winner_logs, baseline_logs, faster, slower;
    for (const std::vector<double>& logs : pairs_) {
      winner_logs.push_back(logs[0]);
      baseline_logs.push_back(logs[baseline]);
      faster.push_back(logs[baseline] - logs[0]);
      slower.push_back(logs[0] - logs[baseline]);
    }
    // A gain over only one baseline proves nothing, so each test may use the whole error. The least of the upper
    // bounds is too low if any of them is.
    claim.gain_low = std::min(claim.gain_low, as_gain(lower_bound(faster, error_)));
    claim.gain_high =
        std::min(claim.gain_high, as_gain(-lower_bound(slower, kTooLow / static_cast<double>(baselines))));
    const double gain = as_gain(moments(faster).mean);
    if (gain >= claim.gain) continue;
    claim.gain = gain;
    claim.baseline = slots_[baseline];
    claim.baseline_ms = std::exp(moments(baseline_logs).mean);
    claim.committed_ms = std::exp(moments(winner_logs).mean);
  }
  claim.confirmed = claim.gain_low > 0;
  return claim;
}

}  // namespace gradtune::tuner
