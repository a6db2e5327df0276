// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// The tuner: a function of events, without clock, thread or socket. It lives on rank 0, gets one report per step and
// answers with at most one command. A simulation, a replayed journal and a training job all run this code. Reports
// come late: the command that answers the report of step r is in force from step r + kLead.
//
// Stages:
// - imported: the job started from a strategy file. That strategy runs, is raced against the baseline, and goes on
//   to `confirm`. If it is not confirmed, it is dropped and a search begins.
// - observe: measures the baselines, and decides if one is faster or either may be.
// - partition: measures the policy's proposals.
// - race: sequential halving on interleaved blocks with paired scores (race.h).
// - confirm: fresh pairs of the winner and the baseline, their number fixed beforehand (confirm.h); against both
//   baselines if either may be the faster one. A winner that is confirmed is committed.
// - watch: the committed strategy runs, or the baseline. The baseline stays if the budget is spent, or if nothing is
//   confirmed to be faster.
// - audit: compares the committed strategy with the baseline again.
//
// A lossy strategy may have to wait (`lossy_after`). A strategy that may run soon is queued behind those that may
// run now. A strategy that may run later is left out of the search, and a new search follows once it may run.
//
// An audit starts after one of these:
// - An alarm: the watch (watch.h) found that step times or the link moved.
// - The clock: now and then, within a fixed small share of the time (audit_clock.h).
//
// An audit drops the committed strategy, so that the baseline runs, under these rules:
// - It is not faster than the baseline; if it is lossier, not faster by more than a tie. Committing it required the
//   same.
// - After an alarm the measured gain decides. Audits by the clock repeat, so they have to prove that the gain is too
//   small.
//
// Known strategies race again after an alarm, once the cooldown is over (watch.h) and the baselines are observed.
// The arms are:
// - strategies that a policy with a model expects to be faster now,
// - the strategies committed before,
// - the best of each kind of compression that the last search measured, and the next best of the kind in force.
// A committed strategy that passed the audit stays, unless another strategy beats it in this race and is confirmed.
// It is also dropped if the other baseline is the faster one by now and it does not look faster than that.
//
// A new search starts after one of these:
// - A strategy that the last search left out may run now. The committed strategy races the new results.
// - The audit found that the committed strategy's speed relative to the baseline moved far since the last search.
//   The former committed strategy races the new results.
// - A strategy other than the one in force won the race. The arms left at its end race the new results.
//
// The baseline takes over after kMostNonfinite consecutive steps with gradients that are not finite under a lossy
// strategy that is committed or pinned.
//
// A bucket may exceed its error budget, have a residual that grows without bound, or be broken (error_budget.h).
// Then:
// - Its strategy does not run again in this job.
// - If it was committed, the baseline runs at once. The same strategy with that bucket sent as the baseline sends it
//   is prepared and confirmed against the baseline, without a search. If it is not faster, the baseline stays and a
//   later search may find others. The same happens for every further bucket.
// - If it was pinned, one warning is given, and it stays. If the user set an error budget, or if it is broken, the
//   baseline takes its place for good, with 16 bits if the fidelity allows them: nothing can be confirmed without a
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
  int budget_steps = 400;      // tuning ends after this many steps; 0: the first strategy in force is pinned
  double budget_share = 0.25;  // tuning also ends when its loss against the baseline exceeds this share of the time so
                               // far
  // Steps before a lossy strategy may run; none: as many as its compressors need with such optimizers (dense_first
  // in engine/core/compressor.h). Waiting for it does not count as tuning.
  std::optional<int> lossy_after = {};
  core::OptimizerFamily optimizers = core::OptimizerFamily::sgd;
  bool has_error_budget = false;  // the user's: a pinned strategy beyond it is dropped too
  bool retune = true;             // after an alarm; false: the decision stays, and alarms are only reported
};

// The evidence of the last decision, and the cost of tuning.
struct Outcome : Comparison {
  bool committed = false;
  int pairs = 0;
  int64_t steps = 0;                    // of tuning, including audits and further tunings
  double cost_ms = 0;                   // sum of max(0, step - baseline's median) in these
  std::optional<int64_t> first_commit;  // steps of the job before the first committed strategy came into force
  std::string label;                    // of the strategy in force
  std::optional<double> predicted_ms;   // of the committed strategy, if its policy has a model
};

// The cost of tuning is also given as a share of this many baseline steps: a short job.
constexpr int kShortJobSteps = 2000;
double cost_share(double cost_ms, double baseline_ms);  // 0 if the baseline is not known

// A command, with the strategy to prepare if it is a prepare.
struct Action {
  Command command;  // the caller, who serialises, fills in `bytes`
  std::shared_ptr<const policies::Candidate> candidate;
};

// The slot of an imported strategy.
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

  // Every search asks a policy of its own. `baselines` are in slot 0 (and 1 if there are two), prepared on all ranks
  // before the first step. `imported` is prepared too. first_slot() is in force.
  Tuner(const TunerOptions& options, MakePolicy make_policy, policies::Knowledge knowledge,
        const std::vector<policies::Candidate>& baselines, const std::optional<policies::Candidate>& imported);
  ~Tuner();

  Action on_step(const core::StepReport& report);

  // Takes the ready times and contents of the tensors: as learned in the first steps while observing, and later when
  // contents have changed, which leads to a new search.
  void learn_table(const core::GradientTable& table);

  // Takes the reason why the strategy under preparation failed; call it before the report that says so.
  void learn_failure(const std::string& why);

  // Takes the times of a step's operations under the strategy of that slot; call it before the report of the step. A
  // few steps of each strategy are enough.
  void learn_timing(int32_t slot, std::vector<policies::TimedOp> ops);

  Stage stage() const;
  const Outcome& outcome() const;
  const policies::Candidate& in_force() const;  // the strategy in force after the last command
  // The committed strategy, even while others are tried. Before a commit it is the job's first strategy: the
  // imported one until it is dropped, or else the baseline. When pinned, it is the strategy in force.
  const policies::Candidate& chosen() const;
  double progress() const;  // of the current stage, 0 to 1, for the live line

  // The blocks of steps that ended with the last report, as measured. There are none while it only watches.
  const std::vector<Score>& ended_blocks() const;

  // The decisions since the last call, oldest first.
  std::vector<Decision> take_decisions();

 private:
  class Core;
  std::unique_ptr<Core> core_;
};

}  // namespace gradtune::tuner
