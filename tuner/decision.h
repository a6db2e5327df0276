// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// What the tuner decides, one line of the journal each: why a command was given. Leaves open who is told.
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
  // The label is the strategy that the decision is about, if any, where nothing else is said.
  enum class What : uint8_t {
    // While it observes.
    compute_slowest,  // value: median of the slowest rank's forward and backward, ms
    compute_fastest,  // value: the same of the fastest rank
    baseline,         // gains are measured against this one. value: its step time, ms. Again where a confirmation shows
                      // that the other one is faster
    // While it searches.
    prepare_failed,  // label: which, and why if that is known
    predict,         // value: its step time as the policy expected it before it ran, ms
    measure,         // value: median of a block, ms; 0 if it could not be scored
    eliminate,       // value: how far it is behind the best, log-ratio
    race_won,        // value: its gain as the race saw it, log-ratio
    // While it confirms.
    confirm,         // value: pairs
    baseline_took,   // value: mean of the blocks of the baseline in the confirmation, ms a step
    winner_took,     // value: the same of the strategy
    gain_at_least,   // value: the lower bound that decides, whatever follows from it
    gain_at_most,    // value: an upper bound (Comparison)
    commit,          // value: the confirmed gain
    not_confirmed,   // value: lower end of the gain's interval; above 0 if the gain is too small for what it loses
    drop_imported,   // value: 0. label: why
    keep_baseline,   // value: the baseline's step time, ms. label: why
    keep_committed,  // value: its step time, ms
    tuning_steps,    // value: steps of all tunings so far, as one ends. label: the strategy that is kept
    tuning_cost,     // value: beyond what the baseline would have taken in these steps, ms. label: likewise
    // While it watches, and after an alarm.
    drift,           // value: logarithm of the new step time over the old one. label: the strategy in force
    link,            // the same of the time that collectives take
    density,         // value: logarithm of the new share of rows that are not zero over the old one, in the sum of all
                     // ranks. label: the tensor
    more_may_run,    // value: the step from which on what the last search left out may run
    straggler,       // value: the rank that holds up the others. label: the strategy in force
    audit,           // value: gain over the baseline
    drop_committed,  // value: that gain, which is too small
    look_again,      // value: how often that was done before. label: the strategy in force
    relation_changed,  // value: by how much it lost against the baseline since the last search, log-ratio
    ranking_holds,     // value: 0. label: the strategy that looks best
    ranking_changed,   // the same
    // At any time.
    over_error_budget,   // value: the error. label: of which strategy and bucket, and what is allowed
    residual_runs_away,  // value: norm(residual) / norm(gradient). label: likewise
    broken,              // value: how far what is sent and kept is from what was given, of its norm. label: likewise
    not_finite,          // value: steps in a row whose gradients were not finite
    give_up,             // value: 0. It was committed or pinned, and one of these three was found of it
    warn,                // value: 0. It is pinned, and stays although one of these three was found of it
    run_instead,         // value: its step time as far as it is known, ms; else 0. It is in force in place of what was
                         // given up, if that is not the baseline
    repair,              // value: that bucket. label: what is confirmed in place of what was committed; the baseline is
                         // in force meanwhile
  };

  int64_t step = 0;
  Stage stage = Stage::observe;
  What what = What::baseline;
  std::string label;
  double value = 0;

  bool operator==(const Decision&) const = default;
};

// Whether it says what the guard of compression found (error_budget.h).
constexpr bool is_finding(Decision::What what) {
  using What = Decision::What;
  return what == What::over_error_budget || what == What::residual_runs_away || what == What::broken ||
         what == What::not_finite;
}

// As journals have it: "compute slowest", "race won", ...
std::string_view to_string(Decision::What what);
std::optional<Decision::What> parse_what(std::string_view text);

}  // namespace gradtune::tuner
