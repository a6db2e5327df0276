// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
#include "policies/step_time_predictor.h"

#include <algorithm>
#include <cmath>
#include <utility>
#include <vector>

#include "engine/core/median.h"
#include "policies/cost/cost_model.h"
#include "policies/cost/timeline.h"
#include "policies/space/baseline.h"

namespace gradtune::policies {
namespace {

constexpr double kNegligible = 0.05;  // of all elements

}  // namespace

core::Result<StepTimePredictor> StepTimePredictor::make(const Knowledge& knowledge,
                                                        std::span<const MeasuredStrategy> measured) {
  StepTimePredictor forecast;
  forecast.table_ = knowledge.table;
  forecast.traits_ = knowledge.traits;
  const auto fit = [&](const CostTable& prior) {
    return fit_cost(knowledge.timed, knowledge.table, knowledge.ranks, knowledge.traits, prior, knowledge.machine);
  };
  const auto prior = prior_cost(fit({}).table, knowledge.codecs, knowledge.machine.idle_links, knowledge.table.uses);
  if (!prior) {
    return core::Error{core::Error::Code::invalid, "no step of the job was timed in which all ranks communicated"};
  }
  forecast.cost_ = fit(*prior);
  forecast.table_ = forecast.undisturbed(knowledge);
  forecast.low_ = shifted(forecast.cost_, -1);
  forecast.high_ = shifted(forecast.cost_, 1);

  forecast.rest_ms_ = forecast.find_rest_ms(knowledge);

  std::map<Kind, std::vector<double>> biases;
  for (const MeasuredStrategy& ran : measured) {
    const auto expected_ms = forecast.uncorrected_ms(ran.strategy);
    if (!expected_ms || !(*expected_ms > 0) || !(ran.step_ms > 0)) continue;
    biases[kind_of(ran.strategy)].push_back(std::log(ran.step_ms / *expected_ms));
  }
  for (auto& [kind, logs] : biases) {
    forecast.biases_[kind] = core::median_in_place(logs);
  }
  return forecast;
}

StepTimePredictor StepTimePredictor::of(core::GradientTable table, core::TraitsTable known, CostTable cost) {
  StepTimePredictor forecast;
  forecast.table_ = std::move(table);
  forecast.traits_ = known;
  forecast.low_ = forecast.high_ = cost;
  forecast.cost_.collectives.resize(cost.collectives.size());
  forecast.cost_.codecs.resize(cost.codecs.size());
  forecast.cost_.table = std::move(cost);
  return forecast;
}

StepTimePredictor StepTimePredictor::elsewhere(const std::function<void(CostTable&)>& change,
                                               double computation) const {
  StepTimePredictor other = *this;
  for (CostTable* cost : {&other.cost_.table, &other.low_, &other.high_}) change(*cost);
  other.rest_ms_ *= computation;
  other.table_.forward_us *= computation;
  for (core::TensorInfo& tensor : other.table_.tensors) {
    tensor.ready_us *= computation;
    if (tensor.read_us > 0) tensor.read_us *= computation;
  }
  return other;
}

// Backward was observed while the baseline's collectives needed cores too. The timeline gives the slowdown, which is
// removed here.
core::GradientTable StepTimePredictor::undisturbed(const Knowledge& knowledge) const {
  core::GradientTable table = knowledge.table;
  const std::vector<double> ready_us = ready_times_us(table);
  const core::Strategy baseline = baselines(table, knowledge.fidelity)[0].strategy;
  auto timeline = Timeline::make(table, baseline, cost_.table, traits_);
  if (!timeline || ready_us.empty() || !(ready_us.back() > 0)) return table;
  std::vector<Span> spans;
  timeline.value().run(spans);
  double us = 0;
  for (const Span& span : spans) {
    if (span.bucket < 0 && span.phase == Phase::backward) us += span.end_us - span.begin_us;
  }
  for (size_t t = 0; t < table.tensors.size(); ++t) table.tensors[t].ready_us = ready_us[t] * ready_us.back() / us;
  return table;
}

// Combines two estimates, weighted by their certainty. The first is the computation of the ranks beyond the
// timeline: backward and, if they were measured, forward and updates. The second is the baseline's time beyond its
// own timeline, which is the difference of two large numbers if the link is slow.
double StepTimePredictor::find_rest_ms(const Knowledge& knowledge) const {
  constexpr double kComputeError = 0.05, kStepError = 0.02;
  double weights = 0, sum = 0;
  const auto add = [&](double rest_ms, double error_ms) {
    if (!(error_ms > 0) || !std::isfinite(rest_ms)) return;
    weights += 1 / (error_ms * error_ms);
    sum += std::max(rest_ms, 0.0) / (error_ms * error_ms);
  };
  const std::vector<double> ready_us = ready_times_us(knowledge.table);
  if (!ready_us.empty()) {
    const double updates_us = static_cast<double>(knowledge.table.numel()) * knowledge.table.update_element_us;
    add(knowledge.compute_ms - (ready_us.back() + updates_us + knowledge.table.forward_us) * 1e-3,
        kComputeError * knowledge.compute_ms);
  }
  std::optional<Step> fastest;
  for (const Candidate& baseline : baselines(knowledge.table, knowledge.fidelity)) {
    const auto expected = step(baseline.strategy);
    if (expected && (!fastest || expected->ms < fastest->ms)) fastest = expected;
  }
  if (fastest) add(knowledge.baseline_ms - fastest->ms, fastest->error_ms + kStepError * knowledge.baseline_ms);
  return weights > 0 ? sum / weights : 0;
}

std::optional<StepTimePredictor::Step> StepTimePredictor::step(const core::Strategy& strategy) const {
  const auto ms = uncorrected_ms(strategy), low_ms = timeline_ms(strategy, low_),
             high_ms = timeline_ms(strategy, high_);
  if (!ms) return {};
  const double factor = std::exp(bias_of(strategy));
  return Step{*ms * factor, std::abs(*high_ms - *low_ms) / 2 * factor};
}

// If no late buckets were measured, they get the bias of buckets that are not late.
double StepTimePredictor::bias_of(const core::Strategy& strategy) const {
  auto bias = biases_.find(kind_of(strategy));
  if (bias == biases_.end()) bias = biases_.find(kind_of(strategy, /*tells_late=*/false));
  return bias == biases_.end() ? 0 : bias->second;
}

std::optional<double> StepTimePredictor::uncorrected_ms(const core::Strategy& strategy) const {
  const auto ms = timeline_ms(strategy, cost_.table);
  return ms ? std::optional(rest_ms_ + *ms) : std::nullopt;
}

std::optional<double> StepTimePredictor::timeline_ms(const core::Strategy& strategy, const CostTable& cost) const {
  auto timeline = Timeline::make(table_, strategy, cost, traits_);
  if (!timeline) return {};
  return timeline.value().run() * 1e-3;
}

StepTimePredictor::Kind StepTimePredictor::kind_of(const core::Strategy& strategy, bool tells_late) {
  int64_t all = 0;
  for (const core::Bucket& bucket : strategy.buckets) all += core::numel(bucket);
  Kind kind;
  for (const core::Bucket& bucket : strategy.buckets) {
    if (static_cast<double>(core::numel(bucket)) < kNegligible * static_cast<double>(all)) continue;
    std::string how = core::uses_levels(bucket.option) ? " in levels" : "";
    if (tells_late && bucket.due == core::Due::forward) how += ", late";
    if (bucket.option.codecs.empty()) kind.insert("none" + how);
    for (const core::Step& step : bucket.option.steps) {
      if (core::is_collective(step.kind)) continue;
      const std::string_view place = core::to_string(step.place);
      kind.insert(core::to_string(bucket.option.codecs[step.codec]) + "@" + std::string(place) + how);
    }
  }
  return kind;
}

}  // namespace gradtune::policies
