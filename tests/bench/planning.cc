// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// usage: bench_planning [TRACE...] BUILD_FOLDER OUTPUT.json
//
// Without TRACE it uses tests/data/traces except ncf, whose times are unusable.
//
// Measures the duration of planning on one core, for each trace (and for all of them as one model of more tensors),
// under the published cost model. The kinds of rows are:
// - ms of `auto`, the median of samples taken in turn with the anchor, Espresso's algorithm 1
// - the distance of the plan's step from the exact optimum of partition and options
// - operations of buckets that the timeline replays in a second, for per-tensor buckets of a two-step program
// - the time to plan again once a link has changed, under the cost model of programs and from pieces
// - the time that all ranks of a running job wait for a round of `auto`, in steps of its baseline
// - without TRACE, for steps that continue into the next forward pass (tests/policies/published_forward.h): the
//   planning time, with US-Byte's search as the anchor, and the step time, with the best published schedule as the
//   anchor
// - without TRACE, planning for all traces as one model
#include <algorithm>
#include <cstdio>
#include <limits>
#include <string>
#include <vector>

#include "engine/compress/compressor.h"
#include "engine/core/clock.h"
#include "engine/core/hash.h"
#include "engine/core/rng.h"
#include "policies/cost/forward_pass.h"
#include "policies/cost/linear_cost.h"
#include "policies/cost/program_cost.h"
#include "policies/cost/published_cost.h"
#include "policies/cost/timeline.h"
#include "policies/planner.h"
#include "policies/space/admission.h"
#include "tests/bench/support/results.h"
#include "tests/policies/published_forward.h"
#include "tests/policies/timeline_job.h"
#include "tuner/files/file_io.h"
#include "tuner/files/trace_file.h"

namespace gradtune::bench {
namespace {

constexpr int kSamples = 31;
constexpr double kGoalMs = 10, kGoalLargeMs = 50, kGoalGap = 1.01;
constexpr size_t kLarge = 200;      // tensors, above which the second goal holds
constexpr size_t kMostExact = 250;  // above this, the exact optimum takes minutes
const policies::PublishedCost kCosts[] = {{.compressor = "dgc", .intra = "pcie", .two_level = true},
                                          {.compressor = "randomk", .intra = "nvl"},
                                          {.compressor = "efsignsgd", .intra = "nvl", .machines = 4}};

struct Times {
  std::vector<double> ms;
  double quantile(double share) {
    std::sort(ms.begin(), ms.end());
    return ms[static_cast<size_t>(share * static_cast<double>(ms.size() - 1))];
  }
};

double plan_ms(std::string_view planner, const policies::PlannedJob& job, policies::Planned& planned) {
  const core::SteadyClock clock;
  const int64_t start_ns = clock.now_ns();
  planned = policies::plan(planner, job).value();
  return static_cast<double>(clock.now_ns() - start_ns) * 1e-6;
}

void measure(const tuner::TraceFile& trace, const policies::PublishedCost& cost, std::vector<Row>& rows) {
  const auto model = std::move(policies::make_published_cost(cost)).value();
  const policies::PlannedJob job{*model, policies::published_knowledge(cost, trace.table)};
  Times automatic, espresso;
  policies::Planned planned, other;
  for (int sample = 0; sample < kSamples; ++sample) {
    automatic.ms.push_back(plan_ms("auto", job, planned));
    espresso.ms.push_back(plan_ms("espresso", job, other));
  }
  const size_t tensors = trace.table.tensors.size();
  const std::string name = trace.model + " (" + std::to_string(tensors) + " tensors), " + cost.compressor + ", " +
                           cost.intra + ", " + std::to_string(cost.machines) + " machines";
  const double goal = tensors <= kLarge ? kGoalMs : kGoalLargeMs;
  const double median = automatic.quantile(0.5), anchor = espresso.quantile(0.5);
  rows.push_back({.name = "planning, " + name,
                  .value = median,
                  .unit = "ms",
                  .anchor = anchor,
                  .ratio = median / anchor,
                  .spread = {automatic.quantile(0.25), automatic.quantile(0.75)},
                  .goal = goal,
                  .met = median <= goal});
  std::printf("%-70s %8.2f ms (algorithm 1: %.2f ms)", name.c_str(), median, anchor);
  if (tensors <= kMostExact) {
    const double exact_us = policies::plan("exhaustive", job).value().end_us;
    const double gap = planned.end_us / exact_us;
    rows.push_back({.name = "step, " + name,
                    .value = planned.end_us * 1e-3,
                    .unit = "ms",
                    .anchor = exact_us * 1e-3,
                    .ratio = gap,
                    .spread = {gap, gap},
                    .goal = kGoalGap,
                    .met = gap <= kGoalGap});
    std::printf(", step %.2f ms, %.3f of the optimum", planned.end_us * 1e-3, gap);
  }
  std::printf("\n");
  std::fflush(stdout);
}

void measure_timeline(const tuner::TraceFile& trace, std::vector<Row>& rows) {
  constexpr double kGoal = 20e6;
  constexpr int kRuns = 400;
  const core::CompressorSpec codec{"bf16"};
  policies::CostTable cost{.ranks = {.size = 8}};
  for (const auto kind : {core::Step::Kind::all_to_all, core::Step::Kind::all_gather}) {
    cost.collectives.push_back({kind, core::Level::flat, 20, 1e-4});
  }
  cost.codecs.push_back({codec, core::Place::host, 2, 1e-5, 2, 1e-5, 1e-5});
  std::vector<std::vector<core::Slice>> buckets;
  for (size_t t = 0; t < trace.table.tensors.size(); ++t) {
    buckets.push_back({{static_cast<int32_t>(t), 0, trace.table.tensors[t].numel}});
  }
  const core::Strategy strategy = core::uniform(std::move(buckets), core::two_step(codec, core::Place::host), 4);
  policies::Timeline timeline = policies::Timeline::make(trace.table, strategy, cost, compress::known_traits()).value();
  const core::SteadyClock clock;
  Times rate;
  double end_us = 0;
  for (int sample = 0; sample < kSamples; ++sample) {
    const int64_t start_ns = clock.now_ns();
    for (int run = 0; run < kRuns; ++run) end_us += timeline.run();
    rate.ms.push_back(kRuns * static_cast<double>(timeline.operations()) * 1e9 /
                      static_cast<double>(clock.now_ns() - start_ns));
  }
  core::check(end_us > 0, "a step takes time");
  const double median = rate.quantile(0.5);
  rows.push_back({.name = "timeline, " + trace.model,
                  .value = median * 1e-6,
                  .unit = "M operations/s",
                  .anchor = kGoal * 1e-6,
                  .ratio = median / kGoal,
                  .spread = {rate.quantile(0.25) / kGoal, rate.quantile(0.75) / kGoal},
                  .goal = 1,
                  .met = median >= kGoal});
  std::printf("%-70s %8.1f million operations a second (goal %.0f)\n", ("timeline, " + trace.model).c_str(),
              median * 1e-6, kGoal * 1e-6);
}

// The link of a job of 8 ranks is half as fast as before: fits a cost model for it, and plans.
void measure_replanning(const tuner::TraceFile& trace, std::vector<Row>& rows) {
  constexpr double kGoalReplanMs = 1;
  const core::CompressorSpec none{"none"}, bf16{"bf16"};
  policies::Knowledge knowledge{
      .table = trace.table, .ranks = {.size = 8}, .codecs = {none, bf16}, .traits = compress::known_traits()};
  const auto cost = [&](double byte_us) {
    policies::CostTable table{.ranks = {.size = 8}, .scale_us = 5, .scale_element_us = 3e-4};
    for (const auto kind : {core::Step::Kind::all_reduce, core::Step::Kind::all_to_all, core::Step::Kind::all_gather}) {
      table.collectives.push_back({kind, core::Level::flat, 100, byte_us});
    }
    table.codecs.push_back({bf16, core::Place::device, 20, 4e-4, 20, 4e-4, 1e-4});
    return table;
  };
  const std::vector<core::Option> options = policies::tree_options({.ranks = {.size = 8},
                                                                    .fidelity = knowledge.fidelity,
                                                                    .codecs = knowledge.codecs,
                                                                    .traits = knowledge.traits,
                                                                    .numel = trace.table.numel()});
  const auto plan_with = [&](double byte_us) {
    const auto model =
        policies::make_program_cost(cost(byte_us), options, knowledge.traits, trace.table.numel()).value();
    return policies::plan("auto", {.model = *model, .knowledge = knowledge, .pieces = 32}).value();
  };
  const core::SteadyClock clock;
  Times times;
  for (int sample = 0; sample < kSamples; ++sample) {
    const int64_t start_ns = clock.now_ns();
    const policies::Planned planned = plan_with(sample % 2 == 0 ? 1e-3 : 2e-3);
    times.ms.push_back(static_cast<double>(clock.now_ns() - start_ns) * 1e-6);
    core::check(planned.end_us > 0, "a step takes time");
  }
  const double median = times.quantile(0.5);
  const std::string name = "planning again, " + trace.model;
  rows.push_back({.name = name,
                  .value = median,
                  .unit = "ms",
                  .anchor = kGoalReplanMs,
                  .ratio = median / kGoalReplanMs,
                  .spread = {times.quantile(0.25), times.quantile(0.75)},
                  .goal = kGoalReplanMs,
                  .met = median <= kGoalReplanMs});
  std::printf("%-70s %8.2f ms (goal %.0f)\n", name.c_str(), median, kGoalReplanMs);
}

// The time that all ranks wait at the end of a round of a live `auto`: the model is fitted, plans are made and
// refined. There are 8 ranks with two workers on the host, a link on which messages travel, and top-k.
void measure_rounds(const tuner::TraceFile& trace, std::vector<Row>& rows) {
  const std::vector<core::CompressorSpec> codecs = {{"none"}, {"bf16"}, {"topk", 0.01}};
  policies::testing::TimelineJob job{.knowledge = {.table = trace.table,
                                                   .ranks = {.size = 8},
                                                   .fidelity = core::Fidelity::lossy,
                                                   .codecs = codecs,
                                                   .traits = compress::known_traits(),
                                                   .host_threads = 2},
                                     .truth = policies::testing::made_up_cost(8, 125, codecs)};
  for (policies::CollectiveRate& rate : job.truth.collectives) rate.wait_us = rate.message_us / 2;
  core::Rng rng(1);
  policies::Knowledge knowledge = job.observed(0.03, rng);
  const auto policy = std::move(policies::make_policy("auto", {})).value();
  const core::SteadyClock clock;
  Times times;
  for (;;) {
    const int64_t start_ns = clock.now_ns();
    const policies::Proposal proposal = policy->propose(knowledge);
    times.ms.push_back(static_cast<double>(clock.now_ns() - start_ns) * 1e-6);
    if (proposal.final) break;
    for (const policies::Candidate& candidate : proposal.candidates) {
      for (int step = 0; step < 3; ++step) knowledge.timed.push_back(job.timed(candidate.strategy, 0.03, rng));
      policy->learn({core::hash(candidate.strategy), job.step_ms(candidate.strategy), 3});
    }
  }
  const std::string name = "a round of auto, the longest of " + std::to_string(times.ms.size()) + ", " + trace.model;
  const double longest = times.quantile(1), step_ms = job.baseline_ms();
  rows.push_back({.name = name,
                  .value = longest,
                  .unit = "ms",
                  .anchor = step_ms,  // a step of the baseline
                  .ratio = longest / step_ms,
                  .spread = {times.quantile(0) / step_ms, longest / step_ms}});
  std::printf("%-70s %8.2f ms (a step of the baseline: %.0f)\n", name.c_str(), longest, step_ms);
}

policies::Planned measure_forward(const std::string& name, const core::GradientTable& table,
                                  const policies::LinearCost& cost, std::vector<Row>& rows) {
  const auto model = policies::make_linear_cost(cost);
  policies::Knowledge knowledge{.table = table,
                                .ranks = {.size = 2},
                                .fidelity = core::Fidelity::exact,
                                .codecs = {{"none"}},
                                .traits = compress::known_traits()};
  knowledge.forward_overlap = true;
  const policies::PlannedJob job{*model, knowledge};
  Times automatic, usbyte;
  policies::Planned planned, other;
  for (int sample = 0; sample < kSamples; ++sample) {
    automatic.ms.push_back(plan_ms("auto", job, planned));
    if (sample % 10 == 0) usbyte.ms.push_back(plan_ms("usbyte", job, other));
  }
  const double goal = table.tensors.size() <= kLarge ? kGoalMs : kGoalLargeMs;
  const double median = automatic.quantile(0.5), anchor = usbyte.quantile(0.5);
  rows.push_back({.name = "planning with forward, " + name,
                  .value = median,
                  .unit = "ms",
                  .anchor = anchor,
                  .ratio = median / anchor,
                  .spread = {automatic.quantile(0.25), automatic.quantile(0.75)},
                  .goal = goal,
                  .met = median <= goal});
  std::printf("%-70s %8.2f ms (usbyte: %.2f ms)", name.c_str(), median, anchor);
  return planned;
}

void measure_published_forward(std::vector<Row>& rows) {
  constexpr double kGoalForward = 1.005;
  for (const policies::testing::PublishedForward& published : policies::testing::kPublishedForward) {
    const double ms = measure_forward(published.name(), published.table(), published.cost(), rows).end_us * 1e-3;
    const double ratio = ms / published.best_ms();
    rows.push_back({.name = "step with forward, " + published.name(),
                    .value = ms,
                    .unit = "ms",
                    .anchor = published.best_ms(),
                    .ratio = ratio,
                    .spread = {ratio, ratio},
                    .goal = kGoalForward,
                    .met = ratio <= kGoalForward});
    std::printf(", step %.2f ms (published %.1f, at least %.1f)\n", ms, published.best_ms(), published.least_ms);
    std::fflush(stdout);
  }
}

// One behind the other, as a model as deep as all of them together.
void append(const tuner::TraceFile& trace, tuner::TraceFile& all) {
  all.model += (all.model.empty() ? "" : "+") + trace.model;
  const double begin_us = all.table.tensors.empty() ? 0 : all.table.tensors.back().ready_us;
  for (core::TensorInfo tensor : trace.table.tensors) {
    tensor.name = trace.model + "." + tensor.name;
    tensor.ready_us += begin_us;
    all.table.tensors.push_back(std::move(tensor));
  }
}

}  // namespace
}  // namespace gradtune::bench

int main(int argc, char** argv) {
  using namespace gradtune;
  if (argc < 3) {
    std::fprintf(stderr, "usage: bench_planning [TRACE...] BUILD_FOLDER OUTPUT.json\n");
    return 2;
  }
  std::vector<std::string> files(argv + 1, argv + argc - 2);
  const bool is_published = files.empty();
  if (is_published) {
    for (const char* model : {"vgg16", "resnet50", "bert_base", "gpt2"}) {
      files.push_back(std::string(GRADTUNE_TRACES "/") + model + ".json");
    }
  }
  std::vector<bench::Row> rows;
  tuner::TraceFile all;
  for (const std::string& file : files) {
    const auto text = tuner::read_file(file, 1 << 20);
    const auto trace = text ? tuner::parse_trace(text.value()) : core::Result<tuner::TraceFile>(text.error());
    if (!trace) {
      std::fprintf(stderr, "bench_planning: %s: %s\n", file.c_str(), trace.error().message.c_str());
      return 1;
    }
    for (const auto& cost : bench::kCosts) bench::measure(trace.value(), cost, rows);
    bench::measure_timeline(trace.value(), rows);
    bench::measure_replanning(trace.value(), rows);
    bench::measure_rounds(trace.value(), rows);
    bench::append(trace.value(), all);
  }
  for (const auto& cost : bench::kCosts) bench::measure(all, cost, rows);
  bench::measure_replanning(all, rows);
  bench::measure_rounds(all, rows);
  if (is_published) {
    bench::measure_published_forward(rows);
    policies::assume_forward(all.table, 0.5);
    for (const policies::LinearCost& cost : {policies::LinearCost{1318.6, 4 * 0.2406e-3}, {50, 4 * 0.2406e-3}}) {
      bench::measure_forward(all.model + " (540 tensors), " + std::to_string(cost.message_us) + " us", all.table, cost,
                             rows);
      std::printf("\n");
    }
  }
  bench::write_results(argc, argv, rows);
}
