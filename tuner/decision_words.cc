// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
#include "tuner/decision_words.h"

#include <fmt/format.h>

#include <cmath>

namespace gradtune::tuner {
namespace {

// A log-ratio as "25 % longer" or "20 % less".
std::string moved(std::string_view what, double log_ratio) {
  return fmt::format("{} {:.0f} % {} than before", what, 100 * std::abs(std::expm1(log_ratio)),
                     log_ratio > 0 ? "longer" : "less");
}

std::string percent(double share) { return std::isfinite(share) ? fmt::format("{:.1f} %", 100 * share) : "not known"; }

}  // namespace

std::string in_words(const Decision& decision) {
  using What = Decision::What;
  const auto& [step, stage, what, label, value] = decision;
  switch (what) {
    case What::compute_slowest: return fmt::format("forward and backward take {:.1f} ms on the slowest rank", value);
    case What::compute_fastest: return fmt::format("forward and backward take {:.1f} ms on the fastest rank", value);
    case What::baseline: return fmt::format("gains are measured against {}, {:.1f} ms a step", label, value);
    case What::prepare_failed: return fmt::format("{} could not be prepared on all ranks", label);
    case What::predict: return fmt::format("{} is expected to take {:.1f} ms a step", label, value);
    case What::measure:
      return value > 0 ? fmt::format("{} takes {:.1f} ms a step", label, value)
                       : fmt::format("{} could not be measured", label);
    case What::eliminate: return fmt::format("{} is out, {} behind the best", label, percent(std::expm1(value)));
    case What::race_won:
      return fmt::format("{} wins the race, where it took {} less than the baseline", label,
                         percent(-std::expm1(-value)));
    case What::confirm: return fmt::format("{} is compared with the baseline in {:.0f} fresh pairs", label, value);
    case What::gain_at_least: return fmt::format("the gain of {} is at least {}", label, percent(value));
    case What::gain_at_most: return fmt::format("the gain of {} is at most {}", label, percent(value));
    case What::commit: return fmt::format("{} is committed, with a gain of {}", label, percent(value));
    case What::not_confirmed: return fmt::format("{} is not confirmed to be faster by enough", label);
    case What::drop_imported: return fmt::format("the imported strategy is dropped: {}", label);
    case What::keep_baseline: return fmt::format("the baseline stays: {}", label);
    case What::keep_committed: return fmt::format("{} stays", label);
    case What::drift: return moved("steps take", value);
    case What::link: return moved("collectives take", value);
    case What::density:
      return fmt::format("of the rows of {}, {:.0f} % {} are used than before", label,
                         100 * std::abs(std::expm1(value)), value > 0 ? "more" : "less");
    case What::more_may_run:
      return fmt::format("from step {:.0f} on compressors may run that had to wait: a new search begins", value);
    case What::straggler: return fmt::format("rank {:.0f} computes longer than it did and holds up the others", value);
    case What::audit: return fmt::format("compared with the baseline again, {} gains {}", label, percent(value));
    case What::drop_committed: return fmt::format("{} is not faster than the baseline any more and is dropped", label);
    case What::look_again: return "it is measured again what is fastest";
    case What::relation_changed:
      return fmt::format("{} stands otherwise to the baseline than when it was searched: a new search begins", label);
    case What::ranking_holds: return fmt::format("{} is still the fastest of what is known", label);
    case What::ranking_changed: return fmt::format("{} looks faster than what is in force: a new search begins", label);
    case What::over_error_budget:
      return fmt::format(
          "its compression loses more than it may (option error_budget, or without one what was seen of it), and is "
          "dropped: {}",
          label);
    case What::residual_runs_away:
      return fmt::format("its residual runs away against the gradient, and it is dropped: {}", label);
    case What::repair:
      return fmt::format("the baseline is in force while what takes its place is confirmed: {}", label);
  }
  return "unknown";
}

std::string_view doing(Stage stage) {
  switch (stage) {
    case Stage::imported: return "running the imported strategy";
    case Stage::observe: return "observing the baseline";
    case Stage::partition: return "measuring candidates";
    case Stage::race: return "racing the best";
    case Stage::confirm: return "confirming the winner against the baseline";
    case Stage::watch: return "done tuning";
    case Stage::audit: return "comparing what was committed with the baseline again";
  }
  return "unknown";
}

}  // namespace gradtune::tuner
