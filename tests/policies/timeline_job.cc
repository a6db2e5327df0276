// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
#include "tests/policies/timeline_job.h"

#include <algorithm>
#include <limits>

#include "policies/cost/cost_model.h"
#include "policies/cost/program_cost.h"
#include "policies/cost/timeline.h"
#include "policies/space/admission.h"
#include "policies/space/baseline.h"

namespace gradtune::policies::testing {
namespace {

void try_all(const TimelineJob& job, const std::vector<core::Option>& options, int32_t first, core::Strategy& begun,
             double& best_ms) {
  const auto& tensors = job.knowledge.table.tensors;
  const auto end = static_cast<int32_t>(tensors.size());
  if (first == end) {
    core::set_default_flow(begun);
    best_ms = std::min(best_ms, job.step_ms(begun));
    return;
  }
  std::vector<core::Slice> slices;
  for (int32_t last = first; last < end; ++last) {
    if (tensors[static_cast<size_t>(last)].dtype != tensors[static_cast<size_t>(first)].dtype) break;
    slices.push_back({last, 0, tensors[static_cast<size_t>(last)].numel});
    for (const core::Option& option : options) {
      begun.buckets.push_back({slices, option});
      try_all(job, options, last + 1, begun, best_ms);
      begun.buckets.pop_back();
    }
  }
}

}  // namespace

double TimelineJob::step_ms(const core::Strategy& strategy) const {
  return rest_ms + Timeline::make(knowledge.table, strategy, truth, knowledge.traits).value().run() * 1e-3;
}

double TimelineJob::baseline_ms() const {
  double ms = std::numeric_limits<double>::infinity();
  for (const Candidate& baseline : baselines(knowledge.table, knowledge.fidelity)) {
    ms = std::min(ms, step_ms(baseline.strategy));
  }
  return ms;
}

TimedRun TimelineJob::timed(const core::Strategy& strategy, double noise, core::Rng& rng) const {
  std::vector<Span> spans;
  Timeline::make(knowledge.table, strategy, truth, knowledge.traits).value().run(spans);
  TimedRun timed{.strategy = strategy, .steps = {}};
  for (const Span& span : spans) {
    if (span.bucket < 0) continue;
    const double spike = rng.below(30) == 0 ? 3 : 1;
    const double us = (span.end_us - span.begin_us) * spike * std::max(0.2, 1 + noise * rng.normal());
    timed.steps.push_back({span.bucket, span.step, span.begin_us, span.begin_us + us});
  }
  return timed;
}

Knowledge TimelineJob::observed(double noise, core::Rng& rng) const {
  Knowledge observed = knowledge;
  for (const Candidate& baseline : baselines(knowledge.table, knowledge.fidelity)) {
    for (int step = 0; step < 3; ++step) observed.timed.push_back(timed(baseline.strategy, noise, rng));
  }
  const core::GradientTable& table = knowledge.table;
  const double updates_us = static_cast<double>(table.numel()) * table.update_element_us;
  observed.compute_ms = rest_ms + (ready_times_us(table).back() + updates_us + table.forward_us) * 1e-3;
  observed.baseline_ms = baseline_ms() * (1 + noise / 2 * rng.normal());
  return observed;
}

double TimelineJob::best_ms() const {
  std::vector<core::Option> tree = tree_options({.ranks = truth.ranks,
                                                 .host_threads = knowledge.host_threads,
                                                 .fidelity = knowledge.fidelity,
                                                 .codecs = knowledge.codecs,
                                                 .traits = knowledge.traits,
                                                 .numel = knowledge.table.numel()});
  std::erase_if(tree, [&](const core::Option& option) {
    return !program_op_costs(truth, option, knowledge.table.numel(), knowledge.traits).ok();
  });
  double best_ms = std::numeric_limits<double>::infinity();
  core::Strategy begun;
  try_all(*this, tree, 0, begun, best_ms);
  return best_ms;
}

CostTable made_up_cost(int ranks, double link_bytes_per_us, const std::vector<core::CompressorSpec>& codecs) {
  using Kind = core::Step::Kind;
  CostTable cost{.ranks = {.size = ranks}, .scale_us = 5, .scale_element_us = 3e-4};
  for (const Kind kind : {Kind::all_reduce, Kind::reduce_scatter, Kind::all_gather, Kind::all_to_all}) {
    cost.collectives.push_back({kind, core::Level::flat, 150, 1 / link_bytes_per_us});
  }
  for (const core::CompressorSpec& codec : codecs) {
    const double passes = codec.name == "topk" ? 6 : codec.name == "efsignsgd" ? 3 : 1.5;
    const double us = passes * 3e-4;
    cost.codecs.push_back({codec, core::Place::device, 20, us, 20, us / 2, us / 8});
    cost.codecs.push_back({codec, core::Place::host, 60, 1.5 * us, 60, 0.75 * us, us / 6});
  }
  return cost;
}

}  // namespace gradtune::policies::testing
