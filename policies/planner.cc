// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
#include "policies/planner.h"

#include <limits>
#include <string>

#include "policies/baseline.h"
#include "policies/espresso.h"
#include "policies/label_search.h"

namespace gradtune::policies {
namespace {

// A tensor is an atom; `tensors` says which one.
struct Atoms {
  explicit Atoms(const core::GradientTable& table) {
    const std::vector<double> ready_us = ready_times_us(table);
    for (size_t t = 0; t < table.tensors.size(); ++t) {
      if (table.tensors[t].numel == 0) continue;
      atoms.push_back({table.tensors[t].numel, ready_us[t]});
      tensors.push_back(static_cast<int32_t>(t));
    }
  }
  std::vector<Atom> atoms;
  std::vector<int32_t> tensors;
};

core::Strategy strategy_of(const Plan& plan, const Atoms& atoms, const CostModel& model) {
  core::Strategy strategy;
  for (const Message& message : plan.messages) {
    core::Bucket bucket{.slices = {}, .option = model.options()[static_cast<size_t>(message.option)]};
    for (auto a = static_cast<size_t>(message.first); a <= static_cast<size_t>(message.last); ++a) {
      bucket.slices.push_back({atoms.tensors[a], 0, atoms.atoms[a].numel});
    }
    strategy.buckets.push_back(std::move(bucket));
  }
  core::set_default_flow(strategy);
  return strategy;
}

bool sends_the_sum(const core::Option& option) {
  return std::any_of(option.steps.begin(), option.steps.end(),
                     [](const core::Step& step) { return step.kind == core::Step::Kind::all_reduce; });
}

bool has_all(const CostModel& model, const core::Strategy& strategy) {
  return std::all_of(strategy.buckets.begin(), strategy.buckets.end(),
                     [&](const core::Bucket& bucket) { return number_of(bucket.option, model).has_value(); });
}

void improve(Planned& best, core::Strategy strategy, const PlannedJob& job) {
  const double end_us = replay_us(job.model, job.knowledge.table, strategy);
  if (end_us < best.end_us) best = {std::move(strategy), end_us, {}};
}

// What a user has without gradtune: DDP's buckets, the faster of those options that are summed by an all-reduce.
Planned plan_baseline(const PlannedJob& job) {
  Planned best{.strategy = {}, .end_us = std::numeric_limits<double>::infinity()};
  core::Strategy strategy = baselines(job.knowledge.table, core::Fidelity::exact)[0].strategy;
  for (const core::Option& option : job.model.options()) {
    if (!sends_the_sum(option)) continue;
    for (core::Bucket& bucket : strategy.buckets) bucket.option = option;
    strategy.order = core::staggered_order(strategy.buckets);
    improve(best, strategy, job);
  }
  return best;
}

// The policy of that name, told what the model says instead of what was measured.
Planned plan_mergecomp(const PlannedJob& job) {
  Planned best = plan_baseline(job);
  Knowledge knowledge = job.knowledge;
  knowledge.baseline_ms = best.end_us * 1e-3;
  const std::unique_ptr<Policy> policy = make_policy("mergecomp", {}).value();
  for (bool final = false; !final;) {
    const Proposal proposal = policy->propose(knowledge);
    final = proposal.final;
    for (const Candidate& candidate : proposal.candidates) {
      if (!has_all(job.model, candidate.strategy)) continue;
      const double end_us = replay_us(job.model, knowledge.table, candidate.strategy);
      policy->learn({core::hash(candidate.strategy), end_us * 1e-3, 1});
      if (final) improve(best, candidate.strategy, job);
    }
  }
  return best;
}

Planned plan_espresso(const PlannedJob& job) {
  const Atoms atoms(job.knowledge.table);
  const Plan on_device = choose_options(job.model, atoms.atoms);
  const Plan plan = offload(job.model, atoms.atoms, on_device);
  return {strategy_of(plan, atoms, job.model), plan.end_us, {}};
}

// The better one of the joint search's answer and of what is known already.
Planned plan_joint(const PlannedJob& job, Planned best, SearchOptions options) {
  const Atoms atoms(job.knowledge.table);
  options.known_us = best.end_us;
  const SearchResult found = search_labels(job.model, atoms.atoms, options);
  if (!found.plans.empty()) best = {strategy_of(found.plans[0], atoms, job.model), found.plans[0].end_us, {}};
  best.error_bound = found.least_us > 0 ? best.end_us / found.least_us - 1 : 0;
  return best;
}

Planned plan_auto(const PlannedJob& job) {
  Planned best = plan_mergecomp(job);
  improve(best, plan_espresso(job).strategy, job);
  return plan_joint(job, std::move(best), {});
}

Planned plan_exhaustive(const PlannedJob& job) {
  constexpr SearchOptions kExact{.tolerance = 0, .most_work = std::numeric_limits<int64_t>::max()};
  return plan_joint(job, {.strategy = {}, .end_us = kExact.known_us}, kExact);
}

}  // namespace

std::span<const PlannerRow> planner_table() {
  static constexpr PlannerRow kTable[] = {
      {"auto", "the joint optimum of partition and options within a stated bound, and never worse than the others",
       plan_auto},
      {"espresso", "an option for each tensor, then offload to the host; nothing is merged", plan_espresso},
      {"mergecomp", "one option for the whole model, in as few buckets as pay", plan_mergecomp},
      {"baseline", "the buckets of PyTorch DDP, all-reduced", plan_baseline},
      {"exhaustive", "the joint optimum itself, however long it takes", plan_exhaustive},
  };
  return kTable;
}

core::Result<Planned> plan(std::string_view planner, const PlannedJob& job) {
  std::string known;
  for (const PlannerRow& row : planner_table()) known += (known.empty() ? "" : ", ") + std::string(row.name);
  for (const core::TensorInfo& tensor : job.knowledge.table.tensors) {
    if (tensor.dtype == core::DType::f32) continue;
    return core::Error{core::Error::Code::invalid, "tensor \"" + tensor.name + "\" has gradients of type " +
                                                       std::string(core::to_string(tensor.dtype)) +
                                                       "; planners know fp32 ones"};
  }
  for (const PlannerRow& row : planner_table()) {
    if (row.name == planner) return row.plan(job);
  }
  return core::Error{core::Error::Code::invalid,
                     "policy \"" + std::string(planner) + "\" is unknown; known are " + known};
}

}  // namespace gradtune::policies
