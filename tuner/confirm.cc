// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
#include "tuner/confirm.h"

#include <algorithm>
#include <cmath>
#include <iterator>

#include "engine/core/result.h"
#include "tuner/statistics.h"

namespace gradtune::tuner {
namespace {

constexpr int kPairs[] = {4, 6, 8, kMostPairs};
constexpr double kPower = 0.85;
constexpr double kFirstError = 0.04, kLaterErrors = 0.01;

}  // namespace

double allowed_error(int earlier_confirmations) {
  constexpr int kMostHalvings = 30;
  return earlier_confirmations == 0 ? kFirstError
                                    : std::ldexp(kLaterErrors, -std::min(earlier_confirmations, kMostHalvings));
}

int pairs_for(const Race::Winner& winner, double error) {
  const double effect = winner.effect - winner.noise / std::sqrt(winner.rounds);
  const auto* enough =
      std::ranges::find_if(kPairs, [&](int pairs) { return power(pairs, effect, winner.noise, error) >= kPower; });
  return enough != std::end(kPairs) ? *enough : kPairs[std::size(kPairs) - 1];
}

Confirmation::Confirmation(int32_t winner, int32_t baseline, int pairs, double error, core::Rng rng)
    : winner_(winner), baseline_(baseline), wanted_(pairs), error_(error), rng_(rng) {}

std::vector<int32_t> Confirmation::next_blocks() {
  std::vector<int32_t> slots;
  for (int pair = static_cast<int>(pairs_ms_.size()); pair < wanted_; ++pair) {
    const bool is_winner_first = rng_.below(2) == 0;
    slots.push_back(is_winner_first ? winner_ : baseline_);
    slots.push_back(is_winner_first ? baseline_ : winner_);
  }
  return slots;
}

void Confirmation::score(const std::vector<Score>& blocks) {
  core::check(blocks.size() % 2 == 0, "blocks come in pairs");
  for (size_t i = 0; i + 1 < blocks.size(); i += 2) {
    const Score &first = blocks[i], &second = blocks[i + 1];
    if (!first.step_ms || !second.step_ms) continue;
    pairs_ms_.push_back(first.slot == winner_ ? PairMs{*first.step_ms, *second.step_ms}
                                              : PairMs{*second.step_ms, *first.step_ms});
  }
}

Claim Confirmation::claim() const {
  core::check(is_over(), "a claim is made once, at the end");
  std::vector<double> winner_logs, baseline_logs, log_ratios;
  for (const PairMs& pair : pairs_ms_) {
    winner_logs.push_back(std::log(pair.winner));
    baseline_logs.push_back(std::log(pair.baseline));
    log_ratios.push_back(baseline_logs.back() - winner_logs.back());
  }
  const Moments faster = moments(log_ratios);
  const double deviation = faster.sd / std::sqrt(static_cast<double>(wanted_));
  const double interval = t_quantile(wanted_, 0.025) * deviation;
  const auto as_gain = [](double log_ratio) { return 1 - std::exp(-log_ratio); };
  return {.confirmed = faster.mean - t_quantile(wanted_, error_) * deviation > 0,
          .baseline_ms = std::exp(moments(baseline_logs).mean),
          .winner_ms = std::exp(moments(winner_logs).mean),
          .gain = as_gain(faster.mean),
          .gain_low = as_gain(faster.mean - interval),
          .gain_high = as_gain(faster.mean + interval),
          .pairs = wanted_};
}

}  // namespace gradtune::tuner
