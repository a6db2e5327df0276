// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// Predicts the step times of strategies for a live policy, from rates that were fitted to the job's own steps
// (cost_fit.h), the timeline (timeline.h) and the measurements so far. Measurements correct it twice. Timed
// operations refine the rates, and a strategy's step time gives the prediction error of its kind, whatever the
// reason.
#pragma once

#include <functional>
#include <map>
#include <optional>
#include <set>
#include <span>
#include <string>

#include "policies/cost/cost_fit.h"
#include "policies/cost/knowledge.h"

namespace gradtune::policies {

// A strategy that ran, and its step time as policies get it.
struct MeasuredStrategy {
  core::Strategy strategy;
  double step_ms = 0;
};

class StepTimePredictor {
 public:
  // An error if no collective over all ranks was timed yet.
  static core::Result<StepTimePredictor> make(const Knowledge& knowledge, std::span<const MeasuredStrategy> measured);

  // A predictor for a table of costs that was not fitted here: of steps from the first ready gradient on, with the
  // ready times as they are, and without an error.
  static StepTimePredictor of(core::GradientTable table, core::TraitsTable known, CostTable cost);

  // The same job under other costs, for example on another link. `change` gets the fitted rates, and those one
  // standard error below and above. All computation takes `computation` times as long.
  StepTimePredictor elsewhere(const std::function<void(CostTable&)>& change, double computation = 1) const;

  struct Step {
    double ms = 0;
    double error_ms = 0;  // half the difference between rates one standard error above and below
  };
  // None if a rate is missing.
  std::optional<Step> step(const core::Strategy& strategy) const;

  const FittedCost& cost() const { return cost_; }
  // The gradients, with ready times as if backward had the cores for itself.
  const core::GradientTable& table() const { return table_; }

 private:
  // The components of the strategy: the compressors, with their places, of buckets that are not negligible, and
  // whether these use levels and are due at the next forward pass.
  using Kind = std::set<std::string>;

  StepTimePredictor() = default;
  static Kind kind_of(const core::Strategy& strategy, bool tells_late = true);
  double bias_of(const core::Strategy& strategy) const;
  std::optional<double> timeline_ms(const core::Strategy& strategy, const CostTable& cost) const;
  core::GradientTable undisturbed(const Knowledge& knowledge) const;
  double find_rest_ms(const Knowledge& knowledge) const;
  std::optional<double> uncorrected_ms(const core::Strategy& strategy) const;

  core::GradientTable table_;
  core::TraitsTable traits_;
  FittedCost cost_;
  CostTable low_, high_;
  double rest_ms_ = 0;             // of a step, outside of its timeline
  std::map<Kind, double> biases_;  // logarithm of measured over predicted
};

}  // namespace gradtune::policies
