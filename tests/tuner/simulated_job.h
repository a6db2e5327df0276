// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// A training job for tests of the tuner. Every strategy has a true step time, and steps are noisy as described in
// tuner/README.md ("Race"). The tuner's commands go through an Agreement for each rank, with the lead that they have
// in a real job.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "engine/core/median.h"
#include "engine/core/rng.h"
#include "tuner/agreement.h"
#include "tuner/files/replay_log.h"
#include "tuner/schedule.h"
#include "tuner/tuner.h"

namespace gradtune::tuner {

using What = Decision::What;

// A strategy that differs from those with another number; only its compressor has a meaning for the tuner.
inline policies::Candidate candidate(const std::string& label, int number, const std::string& codec = "",
                                     size_t buckets = 1) {
  core::Strategy strategy;
  strategy.buckets.resize(buckets);
  for (core::Bucket& bucket : strategy.buckets) {
    bucket.slices = {{.tensor = 0, .offset = 0, .length = 1}};
    if (!codec.empty()) bucket.option = core::gather_payloads({.name = codec}, core::Place::device);
  }
  strategy.in_flight = number + 1;
  return {std::move(strategy), label};
}

inline core::TraitsTable traits() {
  const auto row = [](std::string_view name, core::Fidelity fidelity, int dense_first = 0) {
    core::CompressorTraits traits{};
    traits.name = name;
    traits.fidelity = fidelity;
    traits.dense_first = dense_first;
    return traits;
  };
  static const std::vector<core::CompressorTraits> all = {
      row("none", core::Fidelity::exact), row("bf16", core::Fidelity::half), row("topk", core::Fidelity::lossy),
      row("powersgd", core::Fidelity::lossy, 80)};
  return all;
}

// Proposes the given candidates in order; after that it has nothing more to propose.
class ScriptedPolicy final : public policies::Policy {
 public:
  using Learned = std::vector<core::Measurement>;
  explicit ScriptedPolicy(std::vector<policies::Proposal> script, Learned* learned = nullptr)
      : script_(std::move(script)), learned_(learned) {}

  std::string_view name() const override { return "scripted"; }
  policies::Proposal propose(const policies::Knowledge&) override {
    return next_ < script_.size() ? script_[next_++] : policies::Proposal{.candidates = {}, .final = true};
  }
  void learn(const core::Measurement& measurement) override {
    if (learned_ != nullptr) learned_->push_back(measurement);
  }

 private:
  std::vector<policies::Proposal> script_;
  size_t next_ = 0;
  Learned* learned_;
};

struct Noise {
  double cv = 0;         // log-normal, independent
  double spikes = 0;     // probability of a step 1.5 to 3 times as long
  double drift = 0;      // amplitude of an AR(1) process in the logarithm, coefficient 0.98, shared by all strategies
  double transient = 1;  // factor of the first step after a switch
};
constexpr Noise kQuiet{};
constexpr Noise kReference{.cv = 0.05, .spikes = 0.02, .drift = 0.08, .transient = 2};

// The factors on the times of consecutive steps.
class NoiseProcess {
 public:
  NoiseProcess(const Noise& noise, core::Rng rng) : noise_(noise), rng_(rng), drift_(noise.drift * rng_.normal()) {}

  double next(bool is_switch) {
    constexpr double kMemory = 0.98;
    drift_ = kMemory * drift_ + noise_.drift * std::sqrt(1 - kMemory * kMemory) * rng_.normal();
    double factor = std::exp(noise_.cv * rng_.normal() + drift_);
    if (rng_.uniform() < noise_.spikes) factor *= 1.5 + 1.5 * rng_.uniform();
    return is_switch ? factor * noise_.transient : factor;
  }

  // A block of five steps, the first of which is dropped.
  Score block(int32_t slot, double true_ms) {
    next(true);
    std::vector<double> step_ms;
    for (int i = 0; i < 4; ++i) step_ms.push_back(true_ms * next(false));
    return {.slot = slot, .step_ms = core::median(std::move(step_ms)), .steps = 4};
  }

 private:
  const Noise noise_;
  core::Rng rng_;
  double drift_;
};

// The times of a step; the last rank has the longest computation.
struct SimulatedStep {
  double step_ms = 0, compute_ms_max = 60, compute_ms_min = 60, comm_ms = 0;
};

struct JobOptions {
  int ranks = 2;
  Noise noise;
  uint64_t seed = 1;
  TunerOptions tuner;
  double preparing_ms = 50;
  int preparing_steps = 1;                                     // until the ranks have answered
  std::set<std::string> failing;                               // labels of strategies that the last rank cannot prepare
  std::string failure;                                         // why; empty: not reported
  std::function<bool(int64_t)> excluded;                       // steps with an evaluation or similar
  std::function<bool(int64_t, const std::string&)> nonfinite;  // by step and label in force
  std::function<double(int64_t, const std::string&)> factor;   // of a step's time, by label in force
  std::function<double(int64_t)> comm_ms;                      // of collectives; 0 without it
  std::function<double(int64_t, int)> compute_ms;              // of a rank; 60 without it
  // In place of all these and of true times and noise: by step and label in force.
  std::function<SimulatedStep(int64_t, const std::string&)> step;
  // A policy that plans, instead of a script: its knowledge of the job, and the times of a step under a strategy and
  // of its operations.
  std::function<std::unique_ptr<policies::Policy>()> make_policy;
  policies::Knowledge knowledge;
  std::function<double(const core::Strategy&)> strategy_ms;
  std::function<std::vector<policies::TimedOp>(const core::Strategy&)> ops;
  // For the last rank, by step and label in force.
  std::function<core::Excess(int64_t, const std::string&)> excess;
};

class SimulatedJob {
 public:
  struct Step {
    int64_t step;
    std::string label;
    double ms;
    Stage stage;
    core::StepReport report;  // the step's report, and the tuner's answer
    Command answer;

    bool operator==(const Step&) const = default;
  };

  // `true_ms` by label.
  SimulatedJob(JobOptions options, std::map<std::string, double> true_ms, std::vector<policies::Proposal> script,
               std::vector<policies::Candidate> baselines, std::optional<policies::Candidate> imported = {})
      : options_(std::move(options)), true_ms_(std::move(true_ms)), noise_(options_.noise, core::Rng(options_.seed)) {
    options_.tuner.seed = options_.seed;
    make_tuner_ = [this, script = std::move(script), baselines, imported] {
      policies::Knowledge knowledge = options_.knowledge;
      if (knowledge.traits.empty()) knowledge.traits = traits();
      if (knowledge.ranks.size == 1) knowledge.ranks.size = options_.ranks;  // a single rank has nothing to tune
      Tuner::MakePolicy make_policy = options_.make_policy;
      if (!make_policy) {
        make_policy = [this, script] { return std::make_unique<ScriptedPolicy>(script, &learned); };
      }
      return std::make_unique<Tuner>(options_.tuner, make_policy, knowledge, baselines, imported);
    };
    tuner = make_tuner_();
    for (size_t i = 0; i < baselines.size(); ++i) slots_[static_cast<int32_t>(i)] = baselines[i];
    if (imported) slots_[kImportedSlot] = *imported;
    for (const auto& [slot, start] : slots_) held.insert(slot);
    const int32_t first = first_slot(options_.tuner, traits(), imported);
    for (int r = 0; r < options_.ranks; ++r) {
      ranks_.emplace_back(first, core::hash(slots_[first].strategy));
      for (const auto& [slot, start] : slots_) ranks_.back().prepared(slot, core::hash(start.strategy));
    }
  }

  // Runs until tuning is over and `more` steps after that.
  void run(int more = 0, int64_t most_steps = 5000) {
    for (int left = more; left >= 0 && step_ < most_steps && !testing::Test::HasFatalFailure();) {
      one_step();
      if (tuner->stage() == Stage::watch) --left;
    }
  }

  void one_step() {
    const int32_t slot = ranks_[0].slot();
    const std::string& label = slots_.at(slot).label;
    double ms = true_ms(slots_.at(slot)) * noise_.next(slot != last_slot_);
    if (options_.factor) ms *= options_.factor(step_, label);
    const std::optional<SimulatedStep> given =
        options_.step ? std::optional(options_.step(step_, label)) : std::nullopt;
    if (given) ms = given->step_ms;
    last_slot_ = slot;

    local_.finite = !(options_.nonfinite && options_.nonfinite(step_, label));
    ControlWord reduced = ranks_[0].contribute(local_of(0), announced_);
    for (int r = 1; r < options_.ranks; ++r) {
      const ControlWord word = ranks_[static_cast<size_t>(r)].contribute(local_of(r), Command{});
      for (size_t i = 0; i < word.size(); ++i) reduced[i] = std::max(reduced[i], word[i]);
    }
    core::StepReport report;
    Command command;
    bool is_failed = false;
    for (Agreement& rank : ranks_) {
      auto verdict = rank.receive(local_, reduced);
      ASSERT_TRUE(verdict.ok()) << verdict.error().message;
      report = verdict.value().report;
      command = verdict.value().command;
      is_failed = verdict.value().failed_rank.has_value();
    }
    if (is_failed && !options_.failure.empty()) tuner->learn_failure(options_.failure);
    bool is_excluded = options_.excluded && options_.excluded(step_);
    if (command.kind == Command::Kind::prepare) {
      held.insert(command.slot);
      being_prepared_ = {command.slot, options_.preparing_steps};
      is_excluded = true;
      ms += options_.preparing_ms;
    }
    if (command.kind == Command::Kind::drop) held.erase(command.slot);
    answer_preparing();
    most_held = std::max(most_held, held.size());

    // When baselines are observed anew everything is timed again, as in a real job.
    constexpr int kTimed = 3;
    const size_t told = steps.size();
    if (told > 1 && steps[told - 1].stage == Stage::observe && steps[told - 2].stage != Stage::observe) timed_.clear();
    if (options_.ops && ++timed_[slot] <= kTimed) learn_timing(slot, options_.ops(slots_.at(slot).strategy));
    const Action action = tuner->on_step(report);
    history.add(report, action);
    if (action.command.kind == Command::Kind::prepare) slots_[action.command.slot] = *action.candidate;
    announced_ = action.command;
    for (Decision& decision : tuner->take_decisions()) decisions.push_back(std::move(decision));
    local_ = {.step = step_,
              .step_ms = ms,
              .compute_ms = 60,
              .comm_ms = options_.comm_ms ? options_.comm_ms(step_) : 0,
              .excess = options_.excess ? options_.excess(step_, label) : core::Excess(),
              .finite = true,
              .excluded = is_excluded};
    if (given) local_.comm_ms = given->comm_ms;
    given_ = given;
    steps.push_back({step_, label, ms, tuner->stage(), report, action.command});
    ++step_;
  }

  // Continues like a job that ended here and was restarted from its saved state.
  void save_and_restore() {
    const auto told = parse_replay_log(history.bytes());
    ASSERT_TRUE(told.ok()) << told.error().message;
    tuner = make_tuner_();
    history = ReplayLog();
    const auto on_step = [&](const core::StepReport& report) {
      const Action action = tuner->on_step(report);
      history.add(report, action);
      return action;
    };
    const auto answer =
        replay(told.value(), on_step, [&](const Timing& timing) { learn_timing(timing.slot, timing.ops); });
    ASSERT_TRUE(answer.ok()) << answer.error().message;
    announced_ = answer.value().command;
    tuner->take_decisions();
    for (Agreement& rank : ranks_) rank = Agreement(rank.state());
  }

  const std::string& label_in_force() const { return slots_.at(ranks_[0].slot()).label; }
  int32_t slot_in_force() const { return ranks_[0].slot(); }
  const policies::Candidate& candidate_in(int32_t slot) const { return slots_.at(slot); }
  const core::Strategy& strategy_in_force() const { return slots_.at(ranks_[0].slot()).strategy; }
  int64_t epoch() const { return ranks_[0].epoch(); }
  double true_ms(const std::string& label) const { return true_ms_.at(label); }
  std::vector<std::string> decided(What what) const {
    std::vector<std::string> labels;
    for (const Decision& decision : decisions) {
      if (decision.what == what) labels.push_back(decision.label);
    }
    return labels;
  }

  std::unique_ptr<Tuner> tuner;
  ReplayLog history;
  ScriptedPolicy::Learned learned;
  std::vector<Step> steps;
  std::vector<Decision> decisions;
  std::set<int32_t> held;  // slots that are prepared, or that some rank tried to prepare
  size_t most_held = 0;

 private:
  double true_ms(const policies::Candidate& candidate) const {
    return options_.strategy_ms ? options_.strategy_ms(candidate.strategy) : true_ms_.at(candidate.label);
  }

  void learn_timing(int32_t slot, const std::vector<policies::TimedOp>& ops) {
    history.add(slot, ops);
    tuner->learn_timing(slot, ops);
  }

  LocalStep local_of(int rank) const {
    LocalStep local = local_;
    local.rank = rank;
    if (rank + 1 < options_.ranks) local.excess = {};
    if (options_.compute_ms) local.compute_ms = options_.compute_ms(local.step, rank);
    if (given_) local.compute_ms = rank + 1 < options_.ranks ? given_->compute_ms_min : given_->compute_ms_max;
    return local;
  }

  void answer_preparing() {
    if (!being_prepared_ || --being_prepared_->second > 0) return;
    const int32_t slot = being_prepared_->first;
    const policies::Candidate& prepared = slots_.at(slot);
    for (size_t r = 0; r < ranks_.size(); ++r) {
      const bool fails = r + 1 == ranks_.size() && options_.failing.contains(prepared.label);
      ranks_[r].prepared(slot, fails ? std::nullopt : std::optional(core::hash(prepared.strategy)));
    }
    being_prepared_.reset();
  }

  JobOptions options_;
  std::function<std::unique_ptr<Tuner>()> make_tuner_;
  std::map<std::string, double> true_ms_;
  NoiseProcess noise_;
  std::vector<Agreement> ranks_;
  std::map<int32_t, policies::Candidate> slots_;
  int64_t step_ = 0;
  int32_t last_slot_ = -1;
  std::map<int32_t, int> timed_;  // steps of each slot
  LocalStep local_;
  std::optional<SimulatedStep> given_;  // of the step before
  Command announced_;
  std::optional<std::pair<int32_t, int>> being_prepared_;  // slot, steps left
};

}  // namespace gradtune::tuner
