// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
#include "tuner/report/report.h"

#include <algorithm>
#include <cmath>
#include <exception>
#include <set>
#include <utility>

#include "engine/compress/compressor.h"
#include "engine/core/median.h"
#include "policies/space/baseline.h"

namespace gradtune::tuner {
namespace {

using What = Decision::What;

// The answers of a tuner of the same job that receives the same reports.
struct Again {
  std::vector<Decision> decisions;
  std::vector<EndedBlock> blocks;
  std::unique_ptr<Tuner> tuner;
};

core::Result<Again> again(const JournalFile& journal) {
  Again again;
  std::optional<Stage> stage;
  int episode = 0;
  bool is_observed = false;
  auto tuner = run_again(journal, [&](Tuner& told, const core::StepReport&, Stage told_in, const Action&) {
    if (std::exchange(stage, told_in) != told_in) {
      ++episode;
      is_observed = false;
    }
    for (const Score& score : told.ended_blocks()) again.blocks.push_back({told_in, is_observed, episode, score});
    for (Decision& decision : told.take_decisions()) {
      if (decision.what == What::baseline && decision.stage == Stage::imported) {
        is_observed = true;
        ++episode;
      }
      again.decisions.push_back(std::move(decision));
    }
  });
  if (!tuner) return tuner.error();
  again.tuner = std::move(tuner).value();
  return again;
}

// Compares what people see: figures may differ in their last digits on another machine.
bool are_the_same(const std::vector<Decision>& decisions, const std::vector<Decision>& others) {
  return std::ranges::equal(decisions, others, [](const Decision& a, const Decision& b) {
    constexpr double kDigits = 1e-6;
    const bool is_number = std::isfinite(a.value) && std::isfinite(b.value);
    return a.step == b.step && a.stage == b.stage && a.what == b.what && a.label == b.label &&
           (!is_number || std::abs(a.value - b.value) <= kDigits * std::abs(b.value));
  });
}

bool is_figure(What what) {
  switch (what) {
    case What::compute_slowest:
    case What::compute_fastest:
    case What::predict:
    case What::measure:
    case What::eliminate:
    case What::baseline_took:
    case What::winner_took:
    case What::gain_at_least:
    case What::gain_at_most:
    case What::tuning_steps:
    case What::tuning_cost: return true;
    default: return false;
  }
}

bool is_conclusion(What what) {
  return what == What::commit || what == What::keep_baseline || what == What::keep_committed ||
         what == What::tuning_cost;
}

std::vector<StageRun> runs_of(const JournalFile& journal) {
  std::vector<StageRun> runs;
  for (size_t r = 0; r < journal.reports.size(); ++r) {
    const int64_t step = journal.reports[r].step;
    if (step < 0) continue;
    if (runs.empty() || runs.back().stage != journal.stages[r]) runs.push_back({journal.stages[r], step, step});
    runs.back().end = step + 1;
  }
  return runs;
}

// The slot of that strategy; the last one, as a strategy that is planned again gets a new slot.
int32_t slot_of(const Strategies& strategies, const core::Strategy& strategy) {
  for (auto each = strategies.rbegin(); each != strategies.rend(); ++each) {
    if (each->second.strategy == strategy) return each->first;
  }
  return -1;
}

int32_t slot_of_label(const Strategies& strategies, const std::string& label) {
  for (auto each = strategies.rbegin(); each != strategies.rend(); ++each) {
    if (each->second.label == label) return each->first;
  }
  return -1;
}

class Maker {
 public:
  Maker(const JournalFile& journal, core::GradientTable table) : journal_(journal), table_(std::move(table)) {
    report_.job = journal.job;
    report_.network = journal.network;
    report_.transport = journal.transport;
    report_.strategies = journal.strategies;
    report_.baselines = static_cast<int32_t>(policies::baselines(journal.job.table, journal.job.fidelity).size());
  }

  Report make() {
    read_steps();
    report_.stages = runs_of(journal_);
    read_decisions();
    tell_again();
    report_.trials = trials_of(journal_.decisions);
    report_.races = races_of(blocks_, journal_.decisions, report_.strategies, report_.baselines);
    const int64_t last_step = journal_.reports.empty() ? 0 : journal_.reports.back().step;
    report_.tests = tests_of(blocks_, journal_.decisions, report_.baselines, last_step);
    judge();
    read_guard();
    report_.rounds = round_history(journal_);
    report_.pictures.compared = compared_steps(journal_, report_.standing);
    show_chosen();
    return std::move(report_);
  }

 private:
  void read_steps() {
    std::set<int64_t> seen;
    for (const core::StepReport& step : journal_.reports) {
      if (step.step < 0 || !(step.step_ms > 0)) continue;
      if (!seen.insert(step.step).second) continue;  // a second backward pass in the step, or repeated lines
      report_.steps.push_back({step.step, step.slot, step.step_ms, step.finite && !step.excluded});
    }
    std::ranges::stable_sort(report_.steps, {}, &ReportStep::step);
    if (!journal_.stages.empty()) report_.stage = journal_.stages.back();
  }

  void read_decisions() {
    Story story(journal_.job);
    for (const Decision& decision : journal_.decisions) {
      story.learn(decision);
      report_.stage = is_conclusion(decision.what) ? Stage::watch : decision.stage;
      if (!is_figure(decision.what)) report_.events.push_back(decision);
      if (decision.what == What::commit) report_.kept.insert(decision.label);
    }
    report_.standing = story.standing();
    const int32_t slot = std::max(slot_of_label(report_.strategies, report_.standing.label), 0);
    if (report_.strategies.contains(slot)) report_.chosen = report_.strategies.at(slot);
    // The last report came in that stage, unless a decision was based on it.
    const bool is_after = journal_.decisions.empty() || journal_.reports.empty() ||
                          journal_.reports.back().step > journal_.decisions.back().step;
    if (is_after && !journal_.stages.empty()) report_.stage = journal_.stages.back();
  }

  // A violated precondition means that no tuner wrote the journal.
  void tell_again() {
    if (journal_.job.table.tensors.empty()) return;
    try {
      auto told = again(journal_);
      report_.decides_the_same = told && are_the_same(told.value().decisions, journal_.decisions);
      if (!report_.decides_the_same) {
        report_.lacks.emplace_back(
            "Told the same step times, this version of the program decides otherwise than the one that wrote the "
            "journal. So the blocks of races and tests are not shown.");
        return;
      }
      tuner_ = std::move(told.value().tuner);
      blocks_ = std::move(told.value().blocks);
    } catch (const std::exception& error) {
      report_.lacks.push_back(std::string("The journal can not be told again to a tuner: ") + error.what() + ".");
      return;
    }
    report_.chosen = tuner_->chosen();
    report_.stage = journal_.reports.empty() ? report_.stage : tuner_->stage();
    report_.progress = tuner_->progress();
  }

  void judge() {
    report_.has_begun = !journal_.reports.empty();
    const bool is_over = report_.stage == Stage::watch || report_.stage == Stage::audit;
    report_.is_tuning = report_.has_begun && !is_over && journal_.job.tuning.budget_steps > 0;
  }

  // Derives the bans that follow, as the tuner does (guard.h).
  void read_guard() {
    const core::TraitsTable known = compress::known_traits();
    for (const Decision& decision : journal_.decisions) {
      if (!is_finding(decision.what)) continue;
      const auto found = std::ranges::find_if(journal_.reports, [&](const core::StepReport& report) {
        return report.step == decision.step && report.excess.kind != core::Excess::Kind::none;
      });
      if (found == journal_.reports.end() || !report_.strategies.contains(found->slot)) continue;
      const policies::Candidate& candidate = report_.strategies.at(found->slot);
      GuardCase guard{.step = decision.step, .label = candidate.label, .excess = found->excess};
      const auto bucket = static_cast<size_t>(found->excess.bucket);
      const bool fits =
          bucket < candidate.strategy.buckets.size() && core::validate(candidate.strategy, journal_.job.table).ok();
      if (fits) guard.tensors = tensors_of(candidate.strategy.buckets[bucket], journal_.job.table);
      const bool is_banned = std::ranges::any_of(journal_.decisions, [&](const Decision& other) {
        return other.step == decision.step && (other.what == What::give_up || other.what == What::repair);
      });
      if (fits && is_banned) {
        for (const core::CompressorSpec& codec : candidate.strategy.buckets[bucket].option.codecs) {
          const core::CompressorTraits* traits = core::traits_of(codec, known);
          const bool is_lossy = traits != nullptr && traits->fidelity == core::Fidelity::lossy;
          if (is_lossy) guard.codecs.push_back(core::to_string(codec));
        }
      }
      report_.guard.push_back(std::move(guard));
    }
  }

  void show_chosen() {
    const int32_t slot = slot_of(report_.strategies, report_.chosen.strategy);
    if (slot < 0 || report_.chosen.strategy.buckets.empty()) return;
    if (const core::Status fits = core::validate(report_.chosen.strategy, table_); !fits) {
      report_.lacks.push_back("The strategy does not fit the job's gradients: " + fits.error().message + ".");
      return;
    }
    report_.buckets = rows_of(report_.chosen.strategy, table_, compress::known_traits());
    try {
      report_.pictures.chosen = picture_of(journal_, slot, table_, step_in(slot));
    } catch (const std::exception& error) {
      report_.lacks.push_back(std::string("No picture of a step: ") + error.what() + ".");
    }
    explain_chosen(slot);
  }

  // The step that is compared, if one is.
  std::optional<MeasuredStep> step_in(int32_t slot) const {
    for (const ComparedStep& compared : report_.pictures.compared) {
      if (compared.measured && compared.measured->slot == slot) return compared.measured;
    }
    return measured_step(journal_, slot);
  }

  void explain_chosen(int32_t slot) {
    try {
      JournalFile journal = journal_;
      journal.job.table = table_;
      report_.explanation = explain(journal, slot);
    } catch (const std::exception& error) {
      report_.explanation = core::Error{core::Error::Code::invalid, error.what()};
    }
  }

  const JournalFile& journal_;
  const core::GradientTable table_;  // with ready times if any source has them
  std::unique_ptr<Tuner> tuner_;
  std::vector<EndedBlock> blocks_;
  Report report_;
};

// The table, with the trace's times.
core::Result<core::GradientTable> with_times(core::GradientTable table, const TraceFile& trace) {
  if (table.fingerprint() != trace.table.fingerprint()) {
    return core::Error{core::Error::Code::mismatch, "the trace is of another model than the journal"};
  }
  std::map<std::string, const core::TensorInfo*> traced;
  for (const core::TensorInfo& tensor : trace.table.tensors) traced[tensor.name] = &tensor;
  for (core::TensorInfo& tensor : table.tensors) {
    tensor.ready_us = traced.at(tensor.name)->ready_us;
    tensor.read_us = traced.at(tensor.name)->read_us;
  }
  table.forward_us = trace.table.forward_us;
  table.update_element_us = trace.table.update_element_us;
  return table;
}

}  // namespace

std::string Report::label(int32_t slot) const {
  const auto strategy = strategies.find(slot);
  return strategy != strategies.end() ? strategy->second.label : "strategy " + std::to_string(slot);
}

core::Result<Report> make_report(const JournalFile& journal, const std::optional<TraceFile>& trace) {
  if (!trace) return Maker(journal, journal.job.table).make();
  auto table = with_times(journal.job.table, *trace);
  if (!table) return table.error();
  return Maker(journal, std::move(table).value()).make();
}

}  // namespace gradtune::tuner
