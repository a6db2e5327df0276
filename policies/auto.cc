// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// Policy `auto`: the planner of that name (planner.h) with a model of the running job (step_time_predictor.h), in
// rounds. A round fits the model to the times measured so far, plans, and requests measurements of those plans that
// may be faster than all measured ones. Unknown costs look cheap to the model, so compressors that never ran are tried
// in the first round, and their real cost is known in the second. When a round has no more requests, or after
// kMostRounds, the fastest measured plans go to the race.
//
// It plans with all options, with those that stay on the device, and with one compressor each, so that a round's
// candidates differ where the model may be wrong. Sparse tensors are planned under each scheme too. If buckets may be
// due at the next forward pass, it also plans steps that go on into it, with all options. If the sum of a sparse
// tensor is nearly dense, it plans once more with all tensors as dense ones.
//
// Without operation times it is `mergecomp`, which needs no model.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <iterator>
#include <limits>
#include <map>
#include <set>

#include "policies/cost/program_cost.h"
#include "policies/planner.h"
#include "policies/policy.h"
#include "policies/search/hill_climb.h"
#include "policies/search/uniform_search.h"
#include "policies/space/admission.h"
#include "policies/space/baseline.h"
#include "policies/space/sparse_tensors.h"
#include "policies/step_time_predictor.h"

namespace gradtune::policies {

std::unique_ptr<Policy> make_mergecomp(const PolicyOptions& options);

namespace {

constexpr int kMostRounds = 5;
constexpr size_t kMostAtOnce = 4;
constexpr int kPieces = 32;            // the number of pieces from which buckets are made
constexpr double kWorthTrying = 1.05;  // times the baseline, in the first round: models are a few percent off
constexpr double kWorthAgain = 1.02;   // times the baseline, later, while nothing faster was found
constexpr double kWorthMore = 0.99;    // times the best measured
constexpr double kWorthRacing = 1.05;  // times the best
constexpr size_t kMostRacing = 4;      // plans of one search are much alike, and each costs a block in every round
constexpr double kNotSlower = 1.03;    // times the baseline; slower ones are not worth a race
constexpr double kNearlyDense = 0.5;   // share of rows

using Options = std::vector<core::Option>;

// Plans, each of which uses a part of the options.
struct PlannedPart {
  core::Strategy strategy;
  Options options;  // the options of the plan
};
using Plans = std::vector<PlannedPart>;

// That strategy, or the best fusion after small changes if it is expected to take less time.
core::Strategy or_refined_fusion(core::Strategy strategy, const HillClimbJob& refining, const Knowledge& knowledge,
                                 const StepTimePredictor& forecast) {
  const auto fusion = best_uniform(knowledge, refining.cost, refining.options);
  if (!fusion) return strategy;
  core::Strategy other = hill_climb(*fusion, refining);
  const auto step = forecast.step(strategy), other_step = forecast.step(other);
  return other_step && (!step || other_step->ms < step->ms) ? other : strategy;
}

// Adds the planner's plan with those options; nothing if there are no options.
void add_plan(const Options& options, const Knowledge& knowledge, const CostTable& cost, Plans& plans) {
  if (knowledge.table.numel() == 0) {
    plans.push_back({{}, {core::plain_all_reduce()}});
    return;
  }
  const auto model =
      make_program_cost(cost, options, knowledge.traits, knowledge.table.numel(), core::dtypes_of(knowledge.table));
  if (!model) return;
  const auto planned = plan("auto", {*model.value(), knowledge, kPieces});
  if (!planned) return;
  const auto kept = model.value()->options();
  plans.push_back({planned.value().strategy, {kept.begin(), kept.end()}});
}

Plans plan_joint(const Knowledge& knowledge, const CostTable& cost) {
  const Options all = admitted_options(knowledge);
  Plans plans;
  const auto add = [&](const std::vector<core::CompressorSpec>& codecs, int host_threads) {
    Knowledge part = knowledge;
    part.forward_overlap = false;
    part.codecs = codecs;
    part.host_threads = host_threads;
    Options options;
    for (const core::Option& option : all) {
      const bool is_admitted = std::ranges::all_of(option.codecs, [&](const core::CompressorSpec& codec) {
        return std::ranges::find(codecs, codec) != codecs.end();
      });
      if (is_admitted && (host_threads > 0 || !core::uses_host(option))) options.push_back(option);
    }
    add_plan(options, part, cost, plans);
  };
  add(knowledge.codecs, knowledge.host_threads);
  if (knowledge.host_threads > 0) add(knowledge.codecs, 0);
  for (const core::CompressorSpec& codec : knowledge.codecs) {
    const core::CompressorTraits* const traits = core::traits_of(codec, knowledge.traits);
    if (traits == nullptr || !traits->takes_rows) add({codec}, knowledge.host_threads);
  }
  if (knowledge.forward_overlap && knowledge.table.forward_us > 0) {
    add_plan(all, knowledge, cost, plans);
  }
  return plans;
}

// Each plan with the sparse schemes that seem best, and the first plan with each scheme alone: the schemes take
// about the same time, and the model cannot tell which is faster.
Plans with_sparse_tensors(const Plans& plans, const Knowledge& knowledge, const CostTable& cost) {
  Plans all;
  const auto add = [&](PlannedPart part, std::span<const SparseScheme> schemes) {
    part.strategy = with_sparse_tensors(std::move(part.strategy), knowledge, cost, schemes);
    std::ranges::copy(sparse_options(knowledge, schemes), std::back_inserter(part.options));
    all.push_back(std::move(part));
  };
  for (const PlannedPart& part : plans) add(part, sparse_schemes());
  if (plans.empty()) return all;
  for (const SparseScheme& scheme : sparse_schemes()) add(plans.front(), {&scheme, 1});
  return all;
}

// True if the tensor is sparse, and its sum over all ranks has so many rows that it may be cut and merged like
// others.
bool is_nearly_dense(const core::TensorInfo& tensor) {
  return is_sparse(tensor) && tensor.content.of_all > kNearlyDense;
}

core::GradientTable as_dense(core::GradientTable table) {
  for (core::TensorInfo& tensor : table.tensors) tensor.content = {};
  return table;
}

bool has_late(const core::Strategy& strategy) {
  return std::ranges::any_of(strategy.buckets, [](const auto& bucket) { return bucket.due == core::Due::forward; });
}

class Auto final : public Policy {
 public:
  explicit Auto(const PolicyOptions& options)
      : unplanned_(make_mergecomp(options)),
        most_finalists_(std::min(kMostRacing, static_cast<size_t>(std::max(options.most_finalists, 0)))) {}

  std::string_view name() const override { return "auto"; }

  Proposal propose(const Knowledge& knowledge) override {
    if (knowledge.ranks.size < 2 || knowledge.table.numel() == 0) return {.candidates = {}, .final = true};
    for (Tried& tried : tried_) tried.is_asked = false;  // candidates that could not run have no measurement
    if (!is_planned_) is_planned_ = can_plan(knowledge);
    if (!*is_planned_) return unplanned_->propose(knowledge);
    std::vector<Candidate> next;
    if (rounds_ < kMostRounds) next = next_round(knowledge);
    if (next.empty()) {
      rounds_ = kMostRounds;
      return {finalists(knowledge), true};
    }
    ++rounds_;
    for (const Candidate& candidate : next) tried_.push_back({candidate, core::hash(candidate.strategy)});
    return {std::move(next), false};
  }

  void learn(const core::Measurement& measurement) override {
    if (!is_planned_.value_or(true)) return unplanned_->learn(measurement);
    for (Tried& tried : tried_) {
      if (tried.is_asked && tried.hash == measurement.strategy_hash) tried.step_ms = measurement.step_ms;
    }
  }

 private:
  struct Tried {
    Candidate candidate;
    uint64_t hash;
    bool is_asked = true;
    double step_ms = std::numeric_limits<double>::infinity();
  };

  static bool can_plan(const Knowledge& knowledge) { return StepTimePredictor::make(knowledge, {}).ok(); }

  std::vector<Candidate> next_round(const Knowledge& knowledge) {
    std::vector<MeasuredStrategy> measured;
    double best_ms = std::numeric_limits<double>::infinity();
    std::set<uint64_t> known;
    // Baselines were made before it was known which dense gradients are mostly zeros.
    const bool is_sparse = has_sparse(knowledge.table);
    for (const Candidate& baseline : baselines(knowledge.table, knowledge.fidelity)) {
      const bool ran = std::ranges::any_of(knowledge.timed,
                                           [&](const TimedRun& timed) { return timed.strategy == baseline.strategy; });
      if (ran || !is_sparse) known.insert(core::hash(baseline.strategy));
    }
    for (const Tried& tried : tried_) {
      known.insert(tried.hash);
      if (!std::isfinite(tried.step_ms)) continue;
      measured.push_back({tried.candidate.strategy, tried.step_ms});
      best_ms = std::min(best_ms, tried.step_ms);
    }
    const auto forecast = StepTimePredictor::make(knowledge, measured);
    if (!forecast) return {};
    Knowledge bare = knowledge;
    bare.timed.clear();
    bare.table = without_sparse(bare.table);
    double most_ms = kWorthMore * best_ms;
    if (knowledge.baseline_ms > 0) {
      most_ms = std::min(most_ms, (rounds_ == 0 ? kWorthTrying : kWorthAgain) * knowledge.baseline_ms);
    }
    const CostTable& cost = forecast.value().cost().table;
    std::vector<std::pair<double, core::Strategy>> worth;
    Plans plans = plan_joint(bare, cost);
    if (is_sparse) plans = with_sparse_tensors(plans, knowledge, cost);
    if (std::ranges::any_of(knowledge.table.tensors, is_nearly_dense)) {
      bare.table = as_dense(knowledge.table);
      std::ranges::move(plan_joint(bare, cost), std::back_inserter(plans));
    }
    for (PlannedPart& part : plans) {
      core::Strategy strategy = std::move(part.strategy);
      const HillClimbJob refining{.table = knowledge.table,
                                  .cost = cost,
                                  .traits = knowledge.traits,
                                  .options = part.options,
                                  .most_in_flight = knowledge.machine.collectives_at_once};
      // The climb would restore the order of readiness in a plan with late buckets.
      strategy =
          has_late(strategy) ? reorder(std::move(strategy), refining) : hill_climb(std::move(strategy), refining);
      // This skips the first round: unknown options look cheap in any fusion, so the candidates would be alike.
      if (rounds_ > 0 && !has_late(strategy) && !is_sparse) {
        strategy = or_refined_fusion(std::move(strategy), refining, bare, forecast.value());
      }
      const auto step = forecast.value().step(strategy);
      if (!step || !(step->ms - step->error_ms <= most_ms)) continue;
      if (known.insert(core::hash(strategy)).second) worth.emplace_back(step->ms, std::move(strategy));
    }
    std::ranges::stable_sort(worth, {}, &std::pair<double, core::Strategy>::first);
    worth.resize(std::min(worth.size(), kMostAtOnce));
    std::vector<Candidate> candidates;
    for (auto& [ms, strategy] : worth) {
      std::string label = label_of(strategy, tried_.size() + candidates.size() + 1);
      candidates.push_back({std::move(strategy), std::move(label), ms});
    }
    return candidates;
  }

  // Example: "auto 3: bf16 + topk:0.01 host, 6 buckets".
  static std::string label_of(const core::Strategy& strategy, size_t number) {
    std::set<std::string> parts;
    for (const core::Bucket& bucket : strategy.buckets) {
      std::string part = bucket.option.codecs.empty() ? "none" : "";
      for (const core::CompressorSpec& codec : bucket.option.codecs)
        part += (part.empty() ? "" : ",") + to_string(codec);
      parts.insert(part + (core::uses_host(bucket.option) ? " host" : ""));
    }
    const size_t buckets = strategy.buckets.size();
    const auto late = std::ranges::count(strategy.buckets, core::Due::forward, &core::Bucket::due);
    return fmt::format("auto {}: {}, {} bucket{}{}", number, fmt::join(parts, " + "), buckets, buckets == 1 ? "" : "s",
                       late > 0 ? fmt::format(", {} late", late) : "");
  }

  // The best measured plans, within reach of the best and not slower than the baseline.
  std::vector<Candidate> finalists(const Knowledge& knowledge) const {
    std::vector<const Tried*> ranked;
    for (const Tried& tried : tried_) {
      if (std::isfinite(tried.step_ms)) ranked.push_back(&tried);
    }
    std::ranges::stable_sort(ranked, {}, &Tried::step_ms);
    std::vector<Candidate> candidates;
    for (const Tried* tried : ranked) {
      const bool is_slow = tried->step_ms > kWorthRacing * ranked[0]->step_ms ||
                           (knowledge.baseline_ms > 0 && tried->step_ms > kNotSlower * knowledge.baseline_ms);
      if (!is_slow && candidates.size() < most_finalists_) candidates.push_back(tried->candidate);
    }
    return candidates;
  }

  const std::unique_ptr<Policy> unplanned_;  // used if there is no model
  const size_t most_finalists_;
  std::optional<bool> is_planned_;  // unknown before the first proposal
  int rounds_ = 0;
  std::vector<Tried> tried_;
};

}  // namespace

std::unique_ptr<Policy> make_auto(const PolicyOptions& options) { return std::make_unique<Auto>(options); }

}  // namespace gradtune::policies
