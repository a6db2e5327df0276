// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
#include "tuner/decision.h"

namespace gradtune::tuner {

std::string_view to_string(Stage stage) {
  switch (stage) {
    case Stage::imported: return "imported";
    case Stage::observe: return "observe";
    case Stage::partition: return "partition";
    case Stage::race: return "race";
    case Stage::confirm: return "confirm";
    case Stage::watch: return "watch";
    case Stage::audit: return "audit";
  }
  return "unknown";
}

std::optional<Stage> parse_stage(std::string_view text) {
  for (auto stage = Stage(); stage <= Stage::audit;) {
    if (to_string(stage) == text) return stage;
    stage = static_cast<Stage>(static_cast<int>(stage) + 1);
  }
  return {};
}

std::string_view to_string(Decision::What what) {
  using What = Decision::What;
  switch (what) {
    case What::compute_slowest: return "compute slowest";
    case What::compute_fastest: return "compute fastest";
    case What::baseline: return "baseline";
    case What::prepare_failed: return "prepare failed";
    case What::predict: return "predict";
    case What::measure: return "measure";
    case What::eliminate: return "eliminate";
    case What::race_won: return "race won";
    case What::confirm: return "confirm";
    case What::baseline_took: return "baseline took";
    case What::winner_took: return "winner took";
    case What::gain_at_least: return "gain at least";
    case What::gain_at_most: return "gain at most";
    case What::commit: return "commit";
    case What::not_confirmed: return "not confirmed";
    case What::drop_imported: return "drop imported";
    case What::keep_baseline: return "keep baseline";
    case What::keep_committed: return "keep committed";
    case What::tuning_steps: return "tuning steps";
    case What::tuning_cost: return "tuning cost";
    case What::drift: return "drift";
    case What::link: return "link";
    case What::density: return "density";
    case What::more_may_run: return "more may run";
    case What::straggler: return "straggler";
    case What::audit: return "audit";
    case What::drop_committed: return "drop committed";
    case What::look_again: return "look again";
    case What::relation_changed: return "relation changed";
    case What::ranking_holds: return "ranking holds";
    case What::ranking_changed: return "ranking changed";
    case What::over_error_budget: return "over error budget";
    case What::residual_runs_away: return "residual runs away";
    case What::broken: return "broken";
    case What::not_finite: return "not finite";
    case What::give_up: return "give up";
    case What::warn: return "warn";
    case What::run_instead: return "run instead";
    case What::repair: return "repair";
  }
  return "unknown";
}

std::optional<Decision::What> parse_what(std::string_view text) {
  for (auto what = Decision::What(); what <= Decision::What::repair;) {
    if (to_string(what) == text) return what;
    what = static_cast<Decision::What>(static_cast<int>(what) + 1);
  }
  return {};
}

}  // namespace gradtune::tuner
