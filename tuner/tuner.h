// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// The tuner: a function of events, without clock, thread or socket. It lives on rank 0, gets one report per step and
// answers with at most one command. A simulation, a replayed journal and a training job all run this code. Reports come
// late: the command that answers the report of step r is in force from step r + kLead.
//
// Stages:
// - imported: the job started from a strategy file. That strategy runs, is raced against the baseline, and goes on to
//   `confirm`. If it does not hold, it is dropped and a search begins.
// - observe: measures the baselines, and which one is faster, or that either may be.
// - partition: measures what the policy proposes.
// - race: sequential halving on interleaved blocks with paired scores (race.h).
// - confirm: fresh pairs of the winner and the baseline, as many as fixed beforehand (confirm.h); against both
//   baselines if either may be the faster one. A winner that is confirmed is committed.
// - watch: the committed strategy runs, or the baseline. The baseline stays if the budget is spent, or if nothing is
//   confirmed to be faster.
// - audit: compares what is committed with the baseline again.
//
// A lossy strategy may have to wait (`lossy_after`). What may run soon is waited for, in the queue behind what may run
// now. What may run later is left out of a search, and gets a search once it may run.
//
// What starts an audit:
// - An alarm: the watch (watch.h) found that step times or the link moved.
// - The clock: now and then, within a fixed small share of the time (audit_clock.h).
//
// When an audit drops what is committed, so that the baseline runs:
// - It is not faster than the baseline; if it is lossier, not faster by more than a tie. The same had to hold for it to
//   be committed.
// - After an alarm the measured gain decides. By the clock the test comes again and again, so it has to be proven that
//   the gain is too small.
//
// When strategies that are known race again: after an alarm, once the cooldown is over (watch.h), the baselines are
// observed. Then these race:
// - what a policy with a model expects to be faster now,
// - what was committed before,
// - the best of each kind of compression that the last search measured, and the next best of the kind in force.
// What is committed and held in the audit stays, unless another strategy beats it in this race and is confirmed. It
// goes as well if the other baseline is the faster one by now and it does not look faster than that.
//
// When a new search starts:
// - What the last search left out may run now. What is committed races what the new search finds.
// - The audit found that the committed strategy's speed relative to the baseline moved far since the last search. What
//   was committed before races what the search finds.
// - Another strategy than that in force won the race. What was left at its end races what the search finds.
//
// Gradients that are not finite in kMostNonfinite steps in a row under a lossy strategy that is committed or pinned:
// the baseline takes its place.
//
// A bucket that is over its error budget, whose residual grows without bound, or that is broken (error_budget.h):
// - Its strategy does not run again in this job.
// - If it was committed, the baseline runs at once. The same strategy with that bucket sent as the baseline sends it
//   is prepared and confirmed against the baseline, without a search; if it is not faster, the baseline stays and a
//   later search may find others. The same happens for every further bucket.
// - If it was pinned, this is told once, and it stays. Where the user set an error budget, or where it is broken, the
//   baseline takes its place for good, with 16 bits where the fidelity allows them: nothing can be confirmed without a
//   tuning budget.
// - The bucket's compressor, with its setting, is banned for the tensors in the bucket, and for no others (bans.h).
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "engine/core/measurement.h"
#include "engine/core/strategy.h"
#include "policies/policy.h"
#include "tuner/agreement.h"
#include "tuner/comparison.h"
#include "tuner/decision.h"
#include "tuner/schedule.h"

namespace gradtune::tuner {

constexpr int kLead = 3;

struct TunerOptions {
  uint64_t seed = 0;
  int budget_steps = 400;      // tuning ends after that many steps; 0: what is in force first is pinned
  double budget_share = 0.25;  // ... or when the time lost against the baseline exceeds this share of the time so far
  // Steps before a lossy strategy may run; none: as many as its compressors need with such optimizers (dense_first in
  // engine/core/compressor.h). Waiting for it does not count as tuning.
  std::optional<int> lossy_after = {};
  core::OptimizerFamily optimizers = core::OptimizerFamily::sgd;
  bool has_error_budget = false;  // the user's: a pinned strategy beyond it is dropped too
  bool retune = true;             // after an alarm; otherwise what was decided stays, and alarms are only told
};

// What the last decision rests on, and what tuning cost.
struct Outcome : Comparison {
  bool committed = false;
  int pairs = 0;
  int64_t steps = 0;                    // of tuning, audits and further tunings included
  double cost_ms = 0;                   // sum of max(0, step - baseline's median) in these
  std::optional<int64_t> first_commit;  // steps of the job before what was committed first came into force
  std::string label;                    // of the strategy in force
  std::optional<double> predicted_ms;   // of what was committed, where its policy has a model
};

// What tuning cost, as a share of so many baseline steps: a short job.
constexpr int kShortJobSteps = 2000;
double cost_share(double cost_ms, double baseline_ms);  // 0 where the baseline is not known

// A command together with the strategy that a prepare is about.
struct Action {
  Command command;  // `bytes` is filled in by the caller, who serialises
  std::shared_ptr<const policies::Candidate> candidate;
};

// Where an imported strategy lives.
constexpr int32_t kImportedSlot = 2;

// The first step in which that compressor, or that strategy, may run.
int earliest_step(const TunerOptions& options, core::TraitsTable traits, const core::CompressorSpec& codec);
int earliest_step(const TunerOptions& options, core::TraitsTable traits, const core::Strategy& strategy);

// The slot that all ranks start in: that of the imported strategy, unless it has to wait; otherwise 0.
int32_t first_slot(const TunerOptions& options, core::TraitsTable traits,
                   const std::optional<policies::Candidate>& imported);

class Tuner {
 public:
  using MakePolicy = std::function<std::unique_ptr<policies::Policy>()>;

  // Every search asks a policy of its own. `baselines`: slots 0 (and 1 where there are two), prepared on all ranks
  // before the first step. `imported`: prepared too. In force is first_slot().
  Tuner(const TunerOptions& options, MakePolicy make_policy, policies::Knowledge knowledge,
        const std::vector<policies::Candidate>& baselines, const std::optional<policies::Candidate>& imported);
  ~Tuner();

  Action on_step(const core::StepReport& report);

  // Ready times and contents of the tensors: as learned in the first steps, while observing; and later where contents
  // changed, which leads to a new search.
  void learn_table(const core::GradientTable& table);

  // Why the strategy that is being prepared can not be; told before the report that says so.
  void learn_failure(const std::string& why);

  // When the operations of a step ran under the strategy of that slot; told before the report of the step. A few steps
  // of each strategy are enough.
  void learn_timing(int32_t slot, std::vector<policies::TimedOp> ops);

  Stage stage() const;
  const Outcome& outcome() const;
  const policies::Candidate& in_force() const;  // what the last command put, or left, in force
  // What is committed, also while others are tried; before that what the job began with, the imported strategy until it
  // is dropped or else the baseline. Pinned: what is in force.
  const policies::Candidate& chosen() const;
  double progress() const;  // of the current stage, 0 to 1, for the live line

  // The blocks of steps that ended with the report told last, as they were measured. None while it only watches.
  const std::vector<Score>& ended_blocks() const;

  // What was decided since the last call, oldest first.
  std::vector<Decision> take_decisions();

 private:
  class Core;
  std::unique_ptr<Core> core_;
};

}  // namespace gradtune::tuner
