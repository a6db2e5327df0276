// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
#include "tests/tuner/report/simulated_journal.h"

#include <fmt/format.h>

#include <utility>

#include "engine/compress/compressor.h"
#include "policies/cost/cost_model.h"
#include "policies/space/baseline.h"
#include "tests/policies/jobs.h"
#include "tests/policies/timeline_job.h"
#include "tests/tuner/simulated_job.h"
#include "tuner/files/journal_writer.h"
#include "tuner/timed_ops.h"

namespace gradtune::tuner {
namespace {

using policies::testing::TimelineJob;

constexpr uint64_t kSeed = 3;

Job job_of(core::GradientTable table) {
  return {.table = std::move(table),
          .ranks = {.size = 4},
          .fidelity = core::Fidelity::lossy,
          .codecs = policies::testing::default_codecs(core::Fidelity::lossy),
          .host_threads = 1,
          .machine = {.cores = {.host = 1}},
          .policy = "auto",
          .tuning = {.seed = kSeed}};
}

TimelineJob truth_of(const Job& job, double link_bytes_per_us) {
  return {.knowledge = {.table = job.table,
                        .ranks = job.ranks,
                        .fidelity = job.fidelity,
                        .codecs = job.codecs,
                        .traits = compress::known_traits(),
                        .host_threads = job.host_threads,
                        .machine = job.machine},
          .truth = policies::testing::made_up_cost(job.ranks.size, link_bytes_per_us, job.codecs)};
}

SimulatedJournal run(const Job& job, const std::function<const TimelineJob&(int64_t)>& truth, int64_t steps,
                     int64_t over_at) {
  JobOptions options;
  options.ranks = job.ranks.size;
  options.seed = kSeed;
  options.tuner = job.tuning;
  options.noise = {.cv = 0.02, .spikes = 0.02, .drift = 0.02, .transient = 1.3};
  options.preparing_ms = 10;
  options.knowledge = truth(0).knowledge;
  options.make_policy = [&] { return policies::make_policy(job.policy, {.seed = kSeed}).value(); };
  const SimulatedJob* running = nullptr;
  int64_t step = 0;
  options.strategy_ms = [&](const core::Strategy& strategy) { return truth(step).step_ms(strategy); };
  options.compute_ms = [&](int64_t, int) {
    const TimelineJob& now = truth(step);
    return now.rest_ms + (policies::ready_times_us(job.table).back() + job.table.forward_us) * 1e-3;
  };
  int32_t slot = 0;  // slot of the step
  std::vector<std::vector<policies::TimedOp>> timed;
  options.ops = [&, rng = core::Rng(kSeed).fork("operations")](const core::Strategy& strategy) mutable {
    std::vector<policies::TimedOp> ops = truth(step).timed(strategy, 0.05, rng).steps;
    for (policies::TimedOp& op : ops) {
      op.begin_us = tenths(op.begin_us);
      op.end_us = std::max(op.begin_us, tenths(op.end_us));
    }
    timed.push_back(ops);
    return ops;
  };
  options.excess = [&](int64_t at, const std::string&) {
    core::Excess excess;
    const core::Strategy& strategy = running->candidate_in(slot).strategy;
    if (over_at < 0 || at != over_at || !running->tuner->outcome().committed) return excess;
    for (size_t b = 0; b < strategy.buckets.size(); ++b) {
      if (core::needed_fidelity(strategy.buckets[b].option, compress::known_traits()) != core::Fidelity::lossy)
        continue;
      return core::Excess{
          .kind = core::Excess::Kind::error, .bucket = static_cast<int32_t>(b), .value = 0.99, .allowed = 0.9};
    }
    return excess;
  };
  SimulatedJob simulated(options, {}, {}, policies::baselines(job.table, job.fidelity), job.imported);
  running = &simulated;
  std::string text = journal_header(job, "simulated") + "\n" + journal_line(job.table) + "\n";
  if (job.imported) text += journal_plan_line(-1, kImportedSlot, job, *job.imported) + "\n";
  for (; step < steps; ++step) {
    const Stage told_in = simulated.tuner->stage();
    const size_t decisions = simulated.decisions.size();
    timed.clear();
    slot = simulated.slot_in_force();
    simulated.one_step();
    const SimulatedJob::Step& last = simulated.steps.back();
    for (const auto& ops : timed) text += journal_timing_line(step, slot, ops) + "\n";
    text += journal_line(last.report, told_in) + "\n";
    for (size_t d = decisions; d < simulated.decisions.size(); ++d) text += journal_line(simulated.decisions[d]) + "\n";
    if (last.answer.kind != Command::Kind::prepare) continue;
    const int32_t planned = last.answer.slot;
    text += journal_plan_line(last.report.step + 1, planned, job, simulated.candidate_in(planned)) + "\n";
  }
  return {.text = std::move(text),
          .outcome = simulated.tuner->outcome(),
          .stage = simulated.tuner->stage(),
          .chosen = simulated.tuner->chosen().label};
}

}  // namespace

SimulatedJournal reference_journal(int64_t steps, int64_t slow_from, int64_t over_at) {
  const Job job = job_of(policies::testing::reference_table());
  const TimelineJob fast = truth_of(job, 60), slow = truth_of(job, 6);
  const auto truth = [&](int64_t step) -> const TimelineJob& {
    return slow_from >= 0 && step >= slow_from ? slow : fast;
  };
  return run(job, truth, steps, over_at);
}

TimelineJob reference_truth(int ranks, double link_bytes_per_us) {
  Job job = job_of(policies::testing::reference_table());
  job.ranks.size = ranks;
  return truth_of(job, link_bytes_per_us);
}

SimulatedJournal many_buckets_journal(int64_t steps, int budget_steps) {
  constexpr int32_t kTensors = 540, kLate = 60;
  core::GradientTable table;
  for (int32_t t = 0; t < kTensors; ++t) {
    const int64_t numel = t % 3 == 0 ? 65'536 + 4'096 * (t % 29) : t % 3 == 1 ? 1'024 : 16'384;
    table.tensors.push_back({.name = fmt::format("layers.{}.</script><script>alert('&{}')</script>\".weight", t / 3, t),
                             .shape = {numel},
                             .numel = numel,
                             .ready_us = 100.0 * t,
                             .read_us = 50.0 * (kTensors - 1 - t)});
  }
  table.forward_us = 27'500;
  table.update_element_us = 1e-4;
  Job job = job_of(std::move(table));
  job.tuning.budget_steps = budget_steps;
  policies::Candidate imported{{}, "<b onclick=\"alert(1)\">540 buckets & one each</b>"};
  for (int32_t t = 0; t < kTensors; ++t) {
    core::Bucket bucket{.slices = {{t, 0, job.table.tensors[static_cast<size_t>(t)].numel}},
                        .option = core::plain_all_reduce()};
    if (t % 3 == 0) bucket.option = core::gather_payloads({"topk", 0.01}, core::Place::host);
    if (t % 3 == 1) bucket.option = core::encoded_all_reduce({"bf16"}, core::Place::device);
    if (t >= kTensors - kLate) bucket = {bucket.slices, core::plain_all_reduce(), core::Due::forward};
    imported.strategy.buckets.push_back(std::move(bucket));
  }
  core::set_default_flow(imported.strategy);
  job.imported = std::move(imported);
  const TimelineJob truth = truth_of(job, 300);
  return run(
      job, [&](int64_t) -> const TimelineJob& { return truth; }, steps, -1);
}

}  // namespace gradtune::tuner
