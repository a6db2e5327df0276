// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
#include "tuner/decision_words.h"

#include <fmt/format.h>

#include <cmath>

#include "tuner/confirm.h"
#include "tuner/words.h"

namespace gradtune::tuner {
namespace {

// A log-ratio as "25 % longer" or "20 % less".
std::string moved(std::string_view what, double log_ratio) {
  return fmt::format("{} {:.0f} % {} than before", what, 100 * std::abs(std::expm1(log_ratio)),
                     log_ratio > 0 ? "longer" : "less");
}

// "bf16 all_reduce baseline" -> "bf16 all_reduce".
std::string_view without_role(std::string_view label) {
  constexpr std::string_view kRole = " baseline";
  if (label.ends_with(kRole)) label.remove_suffix(kRole.size());
  return label;
}

// The bucket in a label that names a strategy and a bucket.
std::string_view bucket_of(std::string_view finding) {
  const size_t at = finding.rfind(", bucket ");
  return at == std::string_view::npos ? finding : finding.substr(at + 2);
}

std::string claim_in_words(const Standing& standing) {
  const Comparison& claim = standing.comparison;
  std::string text;
  if (claim.baseline_ms > 0 && claim.committed_ms > 0) {
    text = fmt::format("{} -> {} a step, ", number(claim.baseline_ms), in_ms(claim.committed_ms));
  }
  text += "gain " + percent(claim.gain);
  if (std::isfinite(claim.gain_low)) {
    text +=
        fmt::format(" (at least {} with {:.0f} % confidence)", percent(claim.gain_low), 100 * (1 - allowed_error(0)));
  }
  return fmt::format("{}, baseline {}", text, without_role(standing.baseline));
}

std::string at_ms(double ms) { return ms > 0 ? fmt::format(" at {} a step", in_ms(ms)) : std::string(); }

std::string dropped_in_words(const Standing::Former& former) {
  return fmt::format("{} was dropped in step {}{}{}", without_role(former.label), former.step,
                     former.why.empty() ? "" : ": ", former.why);
}

std::string state_in_words(const Standing& standing) {
  using State = Standing::State;
  const std::string_view label = without_role(standing.label);
  const std::string baseline = std::string(without_role(standing.baseline)) + at_ms(standing.comparison.baseline_ms);
  const auto& former = standing.former;
  switch (standing.state) {
    case State::undecided:
      if (former) return fmt::format("{}; nothing is confirmed since, {} runs", dropped_in_words(*former), label);
      return fmt::format("nothing is confirmed yet, {} runs", label);
    case State::pinned:
      if (standing.warning.empty()) return fmt::format("{} is pinned, and nothing is tuned", label);
      return fmt::format("{} is pinned, and stays although {}", label, standing.warning);
    case State::committed: {
      const std::string committed = fmt::format("committed {}: {}", label, claim_in_words(standing));
      if (!former) return committed;
      if (former->why.empty()) return fmt::format("{}; it replaced {}", committed, without_role(former->label));
      const std::string_view again = former->label == standing.label ? "it is back again: " : "before, ";
      return fmt::format("{}; {}{}", committed, again, dropped_in_words(*former));
    }
    case State::baseline:
      // If nothing replaces the dropped strategy, the reason is the same.
      if (former && standing.why.starts_with(former->label)) {
        return fmt::format("{}; the baseline is back, {}", dropped_in_words(*former), baseline);
      }
      if (former) {
        return fmt::format("{}; the baseline is back, {}: {}", dropped_in_words(*former), baseline, standing.why);
      }
      return fmt::format("the baseline stays, {}: {}", baseline, standing.why);
    case State::dropped: {
      std::string text = former ? dropped_in_words(*former) : "what was kept was dropped";
      text += fmt::format("; {} runs instead",
                          standing.label == standing.baseline ? "the baseline, " + baseline + "," : std::string(label));
      if (!standing.successor.empty()) text += fmt::format(" while {} is confirmed", standing.successor);
      return text;
    }
  }
  return "";
}

}  // namespace

std::string in_words(const Decision& decision) {
  using What = Decision::What;
  const auto& [step, stage, what, label, value] = decision;
  switch (what) {
    case What::compute_slowest: return fmt::format("forward and backward take {} on the slowest rank", in_ms(value));
    case What::compute_fastest: return fmt::format("forward and backward take {} on the fastest rank", in_ms(value));
    case What::baseline: return fmt::format("gains are measured against {}, {} a step", label, in_ms(value));
    case What::prepare_failed: return fmt::format("could not be prepared on all ranks: {}", label);
    case What::predict: return fmt::format("{} is expected to take {} a step", label, in_ms(value));
    case What::measure:
      return value > 0 ? fmt::format("{} takes {} a step", label, in_ms(value))
                       : fmt::format("{} could not be measured", label);
    case What::eliminate: return fmt::format("{} is out, {} behind the best", label, percent(std::expm1(value)));
    case What::race_won:
      return fmt::format("{} wins the race, where it took {} less than the baseline", label,
                         percent(-std::expm1(-value)));
    case What::confirm: return fmt::format("{} is compared with the baseline in {:.0f} fresh pairs", label, value);
    case What::baseline_took: return fmt::format("beside {}, the baseline took {} a step", label, in_ms(value));
    case What::winner_took: return fmt::format("beside the baseline, {} took {} a step", label, in_ms(value));
    case What::gain_at_least: return fmt::format("the gain of {} is at least {}", label, percent(value));
    case What::gain_at_most: return fmt::format("the gain of {} is at most {}", label, percent(value));
    case What::commit: return fmt::format("{} is committed, with a gain of {}", label, percent(value));
    case What::not_confirmed: return fmt::format("{} is not confirmed to be faster by enough", label);
    case What::drop_imported: return fmt::format("the imported strategy is dropped: {}", label);
    case What::keep_baseline: return fmt::format("the baseline stays: {}", label);
    case What::keep_committed: return fmt::format("{} stays", label);
    case What::tuning_steps: return fmt::format("{} is kept after {:.0f} steps of tuning", label, value);
    case What::tuning_cost: return fmt::format("{} is kept after tuning that cost {}", label, in_seconds(value));
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
          "compression loses more than it may (option error_budget, or without one what it loses in trainings or lost "
          "before): {}",
          label);
    case What::residual_runs_away: return fmt::format("a residual runs away against the gradient: {}", label);
    case What::broken:
      return fmt::format("what compression sends and keeps is not what it was given, a fault of program or memory: {}",
                         label);
    case What::not_finite:
      return fmt::format("gradients were not finite in {:.0f} steps in a row under {}", value, label);
    case What::give_up: return fmt::format("{} is given up", label);
    case What::warn: return fmt::format("{} is pinned and stays all the same", label);
    case What::run_instead: return fmt::format("{} runs in its place", label);
    case What::repair: return fmt::format("what is to take its place is confirmed first: {}", label);
  }
  return "unknown";
}

std::string finding_in_words(const Decision& decision) {
  if (decision.what == Decision::What::not_finite) {
    return fmt::format("gradients were not finite in {:.0f} steps in a row", decision.value);
  }
  std::string_view what = "its compression loses more than it may";
  if (decision.what == Decision::What::residual_runs_away) what = "its residual runs away";
  if (decision.what == Decision::What::broken) what = "what it sends and keeps is not what it was given";
  return fmt::format("{} ({})", what, bucket_of(decision.label));
}

std::string in_words(const Standing& standing) {
  std::string text = state_in_words(standing);
  if (standing.tuning_steps == 0) return text;
  text += fmt::format("; tuning took {} steps and cost {}", standing.tuning_steps, in_seconds(standing.tuning_cost_ms));
  const double share = cost_share(standing.tuning_cost_ms, standing.comparison.baseline_ms);
  if (standing.comparison.baseline_ms > 0) {
    text += fmt::format(" ({:.2g} % of {} baseline steps)", 100 * share, kShortJobSteps);
  }
  return text;
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
