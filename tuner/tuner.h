// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// The tuner: a function of events, without clock, thread or socket. It lives on rank 0, takes one report per step and
// answers with at most one command; a simulation, a replayed journal and a training job all run this same code. Reports
// come late: the command answered to the report of step r is in force from step r + kLead.
//
// Stages: observe (baselines in force: learn times, and which is the faster one, or that either may be), partition
// (measure what the policy proposes), race (sequential halving on interleaved blocks, paired scores), confirm (fresh
// pairs against the baseline, and against both where either may be the faster one, as many as fixed beforehand), watch.
// A job that starts from a file begins in `imported` and goes on to confirm. When the budget is spent, or nothing is
// confirmed, the baseline stays (I4).
//
// A strategy of which a bucket is over its error budget, or whose residual runs away (error_budget.h), is out for the
// rest of the job. Committed, it gives way to the baseline at once; then the same strategy with that bucket alone sent
// without compression is prepared and confirmed against the baseline, without a search, and where it is not faster the
// baseline stays and others are looked for. So again for every further bucket. Pinned, it gives way to the baseline for
// good, as without a budget nothing can be confirmed.
//
// What a later search may use: the compressor of such a bucket, with its setting, is banned for the tensors of which the
// bucket held a part, and for these alone. A candidate that would use it in a bucket with one of them is tried with that
// bucket sent without compression.
//
// While it watches, an alarm (watch.h), and now and then the clock, start an audit: a paired test of what was committed
// against the baseline, to which it falls back when it is not faster any more; what is lossier has to be faster by more
// than a tie, as it had to be when it was committed. After an alarm it is enough that it looks so; by the clock, where
// the test comes again and again, it has to be proven. After an alarm, once looking again is worth its price, the
// baselines are observed. Where the audit found what was committed in quite another relation to the baseline than at the
// last search, there is a new one, and what was committed before races what it finds. Otherwise what may be the best by
// now races: what a policy with a model foresees, what was committed before, the best of each kind of compression that
// the last search measured, and the next best of the kind in force; only where another one wins than that in force is
// there a new search, and what was left at the end races what it finds. What was confirmed before and held in the audit
// stays unless another strategy beats it in the race and is confirmed against the baseline, or another baseline is the
// faster one by now and it does not look faster than that.
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

namespace gradtune::tuner {

constexpr int kLead = 3;

struct TunerOptions {
  uint64_t seed = 0;
  int budget_steps = 400;      // tuning ends after that many steps; 0: what is in force first is pinned
  double budget_share = 0.25;  // ... or when the time lost against the baseline exceeds this share of the time so far
  int lossy_after = 0;         // steps before a lossy strategy may run; waiting for it does not count as tuning
  bool retune = true;          // after an alarm; otherwise what was decided stays, and alarms are only told
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
double cost_share(const Outcome& outcome);

// A command together with the strategy that a prepare is about.
struct Action {
  Command command;  // `bytes` is filled in by the caller, who serialises
  std::shared_ptr<const policies::Candidate> candidate;
};

// Where an imported strategy lives.
constexpr int32_t kImportedSlot = 2;

// The slot that all ranks start in: that of the imported strategy, unless it is lossy and has to wait; otherwise 0.
int32_t first_slot(const TunerOptions& options, core::TraitsTable traits,
                   const std::optional<policies::Candidate>& imported);

class Tuner {
 public:
  using MakePolicy = std::function<std::unique_ptr<policies::Policy>()>;

  // Every search asks a policy of its own. `baselines`: slots 0 (and 1 where there are two), prepared on all ranks before the first step. `imported`: prepared
  // too. In force is first_slot().
  Tuner(const TunerOptions& options, MakePolicy make_policy, policies::Knowledge knowledge,
        const std::vector<policies::Candidate>& baselines, const std::optional<policies::Candidate>& imported);
  ~Tuner();

  Action on_step(const core::StepReport& report);

  // Ready times of the tensors as learned in the first steps; may be told while observing.
  void learn_table(const core::GradientTable& table);

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

  // What was decided since the last call, oldest first.
  std::vector<Decision> take_decisions();

 private:
  class Core;
  std::unique_ptr<Core> core_;
};

}  // namespace gradtune::tuner
