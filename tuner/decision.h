// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// The decisions of the tuner, one line of the journal each: they say why a command was given. It leaves open who
// receives them.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace gradtune::tuner {

enum class Stage : uint8_t { imported, observe, partition, race, confirm, watch, audit };
std::string_view to_string(Stage stage);
std::optional<Stage> parse_stage(std::string_view text);

struct Decision {
  // The label is the strategy that the decision is about, if any, unless a comment says otherwise.
  enum class What : uint8_t {
    // Decisions while it observes.
    compute_slowest,  // value: median of the slowest rank's forward and backward, ms
    compute_fastest,  // value: the same of the fastest rank
    baseline,         // gains are measured against this one. value: its step time, ms. Repeated if a confirmation
                      // shows that the other one is faster
    // Decisions while it searches.
    prepare_failed,  // label: which one, and why if that is known
    predict,         // value: its step time as the policy predicted it, ms
    measure,         // value: median of a block, ms; 0 if it could not be scored
    eliminate,       // value: its distance behind the best, log-ratio
    race_won,        // value: its gain as seen by the race, log-ratio
    // Decisions while it confirms.
    confirm,         // value: pairs
    baseline_took,   // value: mean of the baseline's blocks in the confirmation, ms a step
    winner_took,     // value: the same of the strategy
    gain_at_least,   // value: the lower bound that decides, with either outcome
    gain_at_most,    // value: an upper bound (Comparison)
    commit,          // value: the confirmed gain
    not_confirmed,   // value: lower end of the gain's interval; above 0 if the gain is too small for the loss of its
                     // compression
    drop_imported,   // value: 0. label: why
    keep_baseline,   // value: the baseline's step time, ms. label: why
    keep_committed,  // value: its step time, ms
    tuning_steps,    // value: steps of all tunings so far, when one ends. label: the strategy that is kept
    tuning_cost,     // value: extra time over the baseline in these steps, ms. label: likewise
    // Decisions while it watches, and after an alarm.
    drift,           // value: logarithm of the new step time over the old one. label: the strategy in force
    link,            // the same of the time of collectives
    density,         // value: logarithm of the new share of rows that are not zero over the old one, in the sum of all
                     // ranks. label: the tensor
    more_may_run,    // value: the step from which strategies left out of the last search may run
    straggler,       // value: the rank that holds up the others. label: the strategy in force
    audit,           // value: gain over the baseline
    drop_committed,  // value: that gain, which is too small
    look_again,      // value: number of earlier looks. label: the strategy in force
    relation_changed,  // value: its loss against the baseline since the last search, log-ratio
    ranking_holds,     // value: 0. label: the strategy that looks best
    ranking_changed,   // the same
    // Decisions at any time.
    over_error_budget,   // value: the error. label: the strategy and bucket, and the allowed value
    residual_runs_away,  // value: norm(residual) / norm(gradient). label: likewise
    broken,              // value: distance of what is sent and kept from what was given, relative to its norm. label:
                         // likewise
    not_finite,          // value: steps in a row whose gradients were not finite
    give_up,             // value: 0. It was committed or pinned, and one of these three findings is about it
    warn,                // value: 0. It is pinned, and stays although one of these three findings is about it
    run_instead,         // value: its step time if known, ms; else 0. It is in force in place of a strategy that was
                         // given up, if it is not the baseline
    repair,              // value: that bucket. label: the strategy to confirm in place of the committed one; the
                         // baseline is in force meanwhile
  };

  int64_t step = 0;
  Stage stage = Stage::observe;
  What what = What::baseline;
  std::string label;
  double value = 0;

  bool operator==(const Decision&) const = default;
};

// Tells if it is a finding of the guard of compression (error_budget.h).
constexpr bool is_finding(Decision::What what) {
  using What = Decision::What;
  return what == What::over_error_budget || what == What::residual_runs_away || what == What::broken ||
         what == What::not_finite;
}

// As written in journals: "compute slowest", "race won", ...
std::string_view to_string(Decision::What what);
std::optional<Decision::What> parse_what(std::string_view text);

}  // namespace gradtune::tuner
