// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// Whether the compression of each bucket is still what it was when its strategy was chosen: a guard against change. It
// runs on each rank on what the rank's own steps lost. What it finds travels in the control word, reduced to the worst
// of all ranks (agreement.h), and the tuner answers (tuner_core_repair.cc). It bounds error, not accuracy: errors of
// different compressors do not compare. (On our reference model Top-k 1 % has an error of 0.95 and loses no accuracy,
// blockwise EF-SignSGD has 0.85 and loses 1.8 points.)
//
// Rules for a bucket. Medians are over the last kSteps steps.
//   error     The median of e exceeds the budget. That is the user's, or else kMargin times the median over steps
//             kSettling to kSettling + kSteps after the commit (before, the residual still finds its level), at least
//             kLeast. While a strategy is on trial it is the user's, or else, where users named no compressors, kFar
//             times what the bucket's compressors lost where they were found accurate (seen_error), at least kLeast;
//             the median is over the steps since it came into force, at least kTrialSteps.
//   residual  Only after a commit. The median of norm(residual) / norm(gradient) exceeds kMostResidual, or it is above
//             kLeastGrown and has doubled within kGrowthSteps. The first kGrowthSteps after the commit do not count, as
//             every residual grows in them.
// What was learned of a bucket holds for every strategy committed next that has the same bucket (slices and option) in
// its place, also if another bucket was repaired.
//
// Its state is plain data that goes into checkpoints, so a restored job finds what it would have found anyway. Leaves
// open what follows.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "engine/core/measurement.h"
#include "engine/core/strategy.h"

namespace gradtune::tuner {

class ErrorBudget {
 public:
  static constexpr int kSteps = 32, kSettling = 32, kTrialSteps = 3, kGrowthSteps = 100;
  static constexpr double kMargin = 1.2, kFar = 2, kLeast = 0.05, kMostResidual = 30, kLeastGrown = 10, kGrowth = 2;

  // The last N values.
  template <int N>
  struct Window {
    std::array<double, N> values{};
    int count = 0;  // of all values so far; the next one goes to values[count % N]
    void add(double value) { values[static_cast<size_t>(count++ % N)] = value; }
    bool is_full() const { return count >= N; }
    double oldest() const { return values[static_cast<size_t>(count % N)]; }
    double median() const;

    bool operator==(const Window&) const = default;
  };
  struct Bucket {
    Window<kSteps> errors = {}, residuals = {};
    Window<kGrowthSteps> residual_medians = {};

    bool operator==(const Bucket&) const = default;
  };
  struct Committed {
    uint64_t bucket = 0;                 // hash of its slices and option
    std::optional<double> allowed = {};  // by the user, or by what was seen

    bool operator==(const Committed&) const = default;
  };
  struct State {
    std::vector<Bucket> buckets = {};  // of the strategy in force
    bool is_committed = false;
    std::vector<Committed> committed = {};  // buckets of what was committed last

    bool operator==(const State&) const = default;
  };

  struct Limits {
    std::optional<double> budget = {};  // the user's
    bool names_none = false;            // the user named no compressors: those run that our table admits
  };
  explicit ErrorBudget(const Limits& limits) : limits_(limits) {}

  // Another strategy is in force: on trial, or for good. These allocate; record() does not.
  void run(const core::Strategy& strategy);
  void commit(const core::Strategy& strategy);

  // A step that was finite on all ranks, by bucket. Returns the worst by value / allowed, of kind none if all is well.
  core::Excess record(std::span<const core::BucketLoss> losses);

  const State& state() const { return state_; }
  // After run() or commit() of the strategy in force.
  void restore(State state) { state_ = std::move(state); }

 private:
  bool is_over(size_t index, core::Excess& excess);
  bool runs_away(Bucket& bucket, core::Excess& excess) const;

  // What the bucket may lose while its strategy is on trial.
  std::optional<double> allowed_on_trial(const core::Bucket& bucket) const;

  Limits limits_;
  std::vector<std::optional<double>> on_trial_;  // by bucket of the strategy in force; follows from it
  State state_;
};

}  // namespace gradtune::tuner
