// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
#include "tuner/forecast/recorded_job.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <utility>

#include "engine/compress/compressor.h"
#include "engine/core/median.h"
#include "policies/cost/program_cost.h"
#include "policies/planner.h"
#include "policies/search/hill_climb.h"
#include "policies/space/admission.h"
#include "policies/space/baseline.h"
#include "policies/space/sparse_tensors.h"

namespace gradtune::tuner {
namespace {

using core::CompressorSpec;
using core::Fidelity;

core::Error invalid(std::string message) { return {core::Error::Code::invalid, std::move(message)}; }

bool contains(const std::vector<CompressorSpec>& specs, const CompressorSpec& spec) {
  return std::ranges::find(specs, spec) != specs.end();
}

// The compressors with both operations timed, at any place.
std::vector<CompressorSpec> timed_codecs(const JournalFile& journal, core::TraitsTable known) {
  const policies::FittedCost fitted =
      policies::fit_cost(journal.runs(), journal.job.table, journal.job.ranks, known, {}, journal.job.machine);
  std::vector<CompressorSpec> timed;
  for (const policies::CodecRate& rate : fitted.table.codecs) {
    if (!contains(timed, rate.codec)) timed.push_back(rate.codec);
  }
  return timed;
}

// The compressors to plan with, "none" first, and those of them that are guessed.
void choose_codecs(const Job& job, const std::vector<CompressorSpec>& timed, Fidelity asked, core::TraitsTable known,
                   std::vector<CompressorSpec>& codecs, std::vector<CompressorSpec>& guessed) {
  codecs = {CompressorSpec{"none"}};
  for (const Fidelity fidelity : {Fidelity::exact, Fidelity::half, Fidelity::lossy}) {
    if (fidelity > asked) break;
    const auto add = [&](const std::vector<CompressorSpec>& from, std::vector<CompressorSpec>* too) {
      bool has_any = false;
      for (const CompressorSpec& spec : from) {
        const core::CompressorTraits* const traits = core::traits_of(spec, known);
        if (traits == nullptr || traits->fidelity != fidelity) continue;
        has_any = true;
        if (contains(codecs, spec)) continue;
        codecs.push_back(spec);
        if (too != nullptr) too->push_back(spec);
      }
      return has_any;
    };
    if (!add(timed, nullptr) && fidelity != Fidelity::exact)
      add(core::default_list(fidelity, job.tuning.optimizers, known), &guessed);
  }
}

// The times that `auto` would have got: of the last look at the job.
void read_times(const JournalFile& journal, policies::Knowledge& knowledge) {
  for (const Decision& decision : journal.decisions) {
    if (decision.what == Decision::What::compute_slowest) knowledge.compute_ms = decision.value;
    if (decision.what == Decision::What::baseline) knowledge.baseline_ms = decision.value;
  }
}

// The first step after a switch is longer, as in a block of a race.
std::vector<RanStrategy> strategies_that_ran(const JournalFile& journal, const policies::StepTimePredictor& model) {
  constexpr size_t kEnough = 4;
  std::map<int32_t, std::vector<double>> times;
  int32_t last_slot = -1;
  for (const core::StepReport& report : journal.reports) {
    const bool is_first = std::exchange(last_slot, report.slot) != report.slot;
    if (is_first || report.excluded || !report.finite || !(report.step_ms > 0)) continue;
    times[report.slot].push_back(report.step_ms);
  }
  std::vector<RanStrategy> ran;
  for (auto& [slot, ms] : times) {
    const auto candidate = journal.strategies.find(slot);
    if (candidate == journal.strategies.end() || ms.size() < kEnough) continue;
    if (!core::validate(candidate->second.strategy, journal.job.table).ok()) continue;
    const auto expected = model.step(candidate->second.strategy);
    if (!expected) continue;
    const auto steps = static_cast<int64_t>(ms.size());
    ran.push_back({candidate->second, steps, core::median(ms), expected->ms});
  }
  return ran;
}

}  // namespace

std::optional<RecordedJob::Misfit> RecordedJob::misfit() const {
  if (ran.empty()) return {};
  std::vector<double> errors;
  for (const RanStrategy& each : ran) errors.push_back(std::abs(each.error()));
  return Misfit{core::median(errors), std::ranges::max(errors), static_cast<int64_t>(errors.size())};
}

Link link_of(const policies::StepTimePredictor& model, const policies::Machine& machine) {
  constexpr double kBits = 8;
  const policies::FittedCost& cost = model.cost();
  const bool has_levels = cost.table.ranks.has_levels();
  const policies::IdleLink& idle = has_levels ? machine.idle_links.inter : machine.idle_links.flat;
  double byte_us = idle.byte_us;
  if (!(byte_us > 0)) {
    byte_us = std::numeric_limits<double>::infinity();
    for (size_t c = 0; c < cost.collectives.size(); ++c) {
      const policies::CollectiveRate& rate = cost.table.collectives[c];
      if (policies::uses_network(rate.level) && cost.collectives[c].samples > 0 && rate.byte_us > 0)
        byte_us = std::min(byte_us, rate.byte_us);
    }
  }
  // A message takes two delays: the receiver announces it first.
  return {.rate_mbit = std::isfinite(byte_us) ? kBits / byte_us : 0, .delay_us = idle.wait_us / 2};
}

core::Result<RecordedJob> recorded_job(const JournalFile& journal, std::optional<Fidelity> fidelity) {
  const Job& job = journal.job;
  if (job.ranks.size < 2) return invalid("the job has one rank, which sends nothing");
  if (journal.timings.empty()) return invalid("it has no timings; a job writes them while it tunes");
  const bool has_times =
      std::ranges::any_of(job.table.tensors, [](const core::TensorInfo& tensor) { return tensor.ready_us > 0; });
  if (!has_times) return invalid("it ended before it was known when gradients are ready, after some steps of tuning");
  policies::Knowledge knowledge = knowledge_of(job);
  std::vector<CompressorSpec> guessed;
  choose_codecs(job, timed_codecs(journal, knowledge.traits), fidelity.value_or(job.fidelity), knowledge.traits,
                knowledge.codecs, guessed);
  read_times(journal, knowledge);
  knowledge.timed = journal.runs();
  auto model = policies::StepTimePredictor::make(knowledge, {});
  if (!model) return model.error();
  const Link link = link_of(model.value(), job.machine);
  std::vector<RanStrategy> ran = strategies_that_ran(journal, model.value());
  knowledge.timed.clear();
  knowledge.fidelity = fidelity.value_or(job.fidelity);
  knowledge.table = model.value().table();
  return RecordedJob{.knowledge = std::move(knowledge),
                     .model = std::move(model).value(),
                     .recorded_fidelity = job.fidelity,
                     .guessed = std::move(guessed),
                     .link = link,
                     .ran = std::move(ran)};
}

std::optional<Forecast> forecast_baseline(const policies::Knowledge& knowledge,
                                          const policies::StepTimePredictor& model) {
  std::optional<Forecast> fastest;
  for (policies::Candidate& baseline : policies::baselines(knowledge.table, knowledge.fidelity)) {
    const auto step = model.step(baseline.strategy);
    if (step && (!fastest || step->ms < fastest->ms))
      fastest = Forecast{std::move(baseline.strategy), step->ms, step->error_ms};
  }
  return fastest;
}

std::optional<Forecast> forecast_choice(const policies::Knowledge& knowledge, const policies::StepTimePredictor& model,
                                        std::span<const core::Strategy> known) {
  constexpr int kPieces = 32;  // as policy `auto`
  std::optional<Forecast> best = forecast_baseline(knowledge, model);
  const policies::TreeJob tree{.ranks = knowledge.ranks,
                               .host_threads = knowledge.host_threads,
                               .fidelity = knowledge.fidelity,
                               .codecs = knowledge.codecs,
                               .traits = knowledge.traits,
                               .numel = knowledge.table.numel(),
                               .memory_bytes = knowledge.memory_bytes};
  const auto consider = [&](const core::Strategy& strategy) {
    const auto step = model.step(strategy);
    if (step && (!best || step->ms < best->ms)) best = Forecast{strategy, step->ms, step->error_ms};
  };
  for (const core::Strategy& strategy : known) {
    const auto is_admitted = [&](const core::Bucket& bucket) { return policies::admits(bucket.option, tree); };
    if (std::ranges::all_of(strategy.buckets, is_admitted)) consider(strategy);
  }
  const policies::CostTable& cost = model.cost().table;
  const std::vector<core::Option> options = policies::admitted_options(knowledge);
  policies::Knowledge dense = knowledge;
  dense.table = policies::without_sparse(model.table());
  const auto lanes = policies::make_program_cost(cost, options, knowledge.traits, knowledge.table.numel(),
                                                 core::dtypes_of(knowledge.table));
  if (!lanes) return best;
  const auto planned = policies::plan("auto", {*lanes.value(), dense, kPieces});
  if (!planned) return best;
  core::Strategy strategy = planned.value().strategy;
  if (policies::has_sparse(knowledge.table)) {
    strategy = policies::with_sparse_tensors(std::move(strategy), knowledge, cost);
  }
  consider(strategy);
  const auto kept = lanes.value()->options();
  const policies::HillClimbJob refining{.table = model.table(),
                                        .cost = cost,
                                        .traits = knowledge.traits,
                                        .options = kept,
                                        .most_in_flight = knowledge.machine.collectives_at_once};
  const bool is_late = std::ranges::any_of(strategy.buckets,
                                           [](const core::Bucket& bucket) { return bucket.due == core::Due::forward; });
  consider(is_late ? policies::reorder(strategy, refining) : policies::hill_climb(strategy, refining));
  return best;
}

}  // namespace gradtune::tuner
