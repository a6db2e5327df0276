// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
#include "tuner/standing.h"

#include <cmath>
#include <string_view>
#include <utility>

#include "policies/space/baseline.h"
#include "tuner/decision_words.h"

namespace gradtune::tuner {
namespace {

using State = Standing::State;
using What = Decision::What;

// Journals are untrusted.
int64_t whole(double value) {
  constexpr double kMost = 1e15;
  return std::abs(value) < kMost ? std::llround(value) : 0;
}

}  // namespace

Story::Story(const Job& job) {
  baseline_ = policies::baselines(job.table, job.fidelity).front().label;
  standing_.baseline = baseline_;
  standing_.label = job.imported ? job.imported->label : baseline_;
  if (job.tuning.budget_steps == 0) standing_.state = State::pinned;
}

void Story::give_up(const Decision& decision, std::string why) {
  standing_.former = Standing::Former{decision.step, decision.label, std::move(why)};
  run_baseline(State::dropped);
}

// It makes no claim for the baseline.
void Story::run_baseline(State state) {
  standing_.state = state;
  standing_.label = standing_.baseline = baseline_;
  standing_.comparison = {.baseline_ms = baseline_ms_};
  standing_.pairs = 0;
  standing_.why.clear();
  standing_.successor.clear();
  standing_.warning.clear();
}

void Story::learn(const Decision& decision) {
  const auto& [step, stage, what, label, value] = decision;
  switch (what) {
    case What::baseline: {
      const bool is_shown = standing_.state != State::committed;
      if (is_shown && standing_.label == baseline_) standing_.label = label;
      baseline_ = label;
      baseline_ms_ = value;
      if (!is_shown) break;
      standing_.baseline = label;
      standing_.comparison.baseline_ms = value;
      break;
    }
    case What::confirm:
      tested_ = {};
      pairs_ = whole(value);
      break;
    case What::baseline_took: tested_.baseline_ms = value; break;
    case What::winner_took: tested_.committed_ms = value; break;
    case What::gain_at_least: tested_.gain_low = value; break;
    case What::gain_at_most: tested_.gain_high = value; break;
    case What::commit:
      if (standing_.state == State::committed) standing_.former = Standing::Former{step, standing_.label, ""};
      run_baseline(State::committed);
      standing_.label = label;
      if (!(tested_.baseline_ms > 0)) tested_.baseline_ms = baseline_ms_;
      standing_.comparison = tested_;
      standing_.comparison.gain = value;
      standing_.pairs = pairs_;
      standing_.since = step;
      if (!standing_.first_commit) standing_.first_commit = step + kLead;
      break;
    case What::keep_committed: standing_.since = step; break;
    case What::keep_baseline:
      if (value > 0) baseline_ms_ = value;
      run_baseline(State::baseline);
      standing_.why = label;
      standing_.since = step;
      break;
    case What::tuning_steps: standing_.tuning_steps = whole(value); break;
    case What::tuning_cost: standing_.tuning_cost_ms = value; break;
    case What::drop_imported:
      standing_.former = Standing::Former{step, standing_.label, label};
      run_baseline(State::undecided);
      break;
    case What::drop_committed: give_up(decision, "it is not faster than the baseline any more"); break;
    case What::over_error_budget:
    case What::residual_runs_away:
    case What::broken:
    case What::not_finite: finding_ = finding_in_words(decision); break;
    case What::give_up: give_up(decision, std::exchange(finding_, {})); break;
    case What::warn: standing_.warning = std::exchange(finding_, {}); break;
    case What::run_instead: standing_.label = label; break;
    case What::repair: standing_.successor = label; break;
    default: break;
  }
}

}  // namespace gradtune::tuner
