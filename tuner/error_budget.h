// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// Guards the compression of each bucket. It runs on each rank on the losses of the rank's own steps. Its finding
// travels in the control word, reduced to the worst of all ranks (agreement.h), and the tuner answers (guard.h). It
// bounds error, not accuracy: errors of different compressors do not compare. (On our reference model Top-k 1 % has
// an error of 0.95 and loses no accuracy, blockwise EF-SignSGD has 0.85 and loses 1.8 points.)
//
// Errors and residuals of a healthy training move: early gradients are large and of low rank, later ones are noise,
// and each change of the learning rate or the batch moves them again. So no limit is derived from one job at one
// time.
//
// Rules for a bucket. `far(e)` is far_error(): twice e, but for errors below 1 no more than kAboveOne. Error feedback
// keeps the error of a compressor that works below 1. It may come near 1 in a healthy training, because the error of a
// low-rank or sparse compressor depends on the spectrum of the gradient. It rises in tens of steps when a training
// leaves its first phase, when batches grow, or when other strategies interrupt it.
// - broken: what was sent plus what was kept differs from what was given by more than rounding (exec/balance.h). No
//   training does that. It is found in one step.
// - error: the median of kSteps errors exceeds the user's budget. Without one, and if users named no compressors, the
//   limit is far() of the largest error that the bucket's compressors had in whole trainings with that family of
//   optimizers (CompressorTraits::seen_error). While a strategy is on trial the median is over the errors so far, at
//   least kFirst.
// - jump: the median of the last kJump errors exceeds far() of the median of the earlier ones, in kSteps steps. A
//   change in training moves errors by tens of per cent. Errors of a bucket continue if the strategy committed next
//   has the same bucket in its place. So several buckets may jump at once, and they are found one after the other.
//   The rule does not apply with a user's budget, which is the limit then.
// - residual, only after a commit: norm(residual) / norm(gradient) exceeds kMostResidual. Or it exceeds kLeastGrown
//   and has doubled in kGrowthSteps steps while the residual itself has grown. If the gradient shrinks, as after a
//   lower learning rate, a residual that is being paid off is large against it for some steps. Doubling counts from
//   2 * kGrowthSteps steps on, as every residual grows at first.
// - Errors below kLeast are always acceptable.
//
// Its state is plain data that goes into checkpoints, so a restored job finds the same as it would have otherwise.
// It leaves open what follows.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "engine/core/compressor.h"
#include "engine/core/measurement.h"
#include "engine/core/strategy.h"

namespace gradtune::tuner {

// The smallest error that is no longer plausible for a compressor with that usual error.
double far_error(double usual);

class ErrorBudget {
 public:
  static constexpr int kSteps = 32, kFirst = 3, kJump = 8, kLevelSteps = 25, kLevels = 4;
  static constexpr int kGrowthSteps = kLevelSteps * kLevels;
  static constexpr double kLeast = 0.05, kMostResidual = 30, kLeastGrown = 10, kGrowth = 2, kBroken = 1e-3;
  static constexpr double kAboveOne = 1.1;  // 1, and room for the error of a sample

  // The last N values.
  template <int N>
  struct Window {
    std::array<double, N> values{};
    int count = 0;  // number of all values so far; the next one goes to values[count % N]
    void add(double value) { values[static_cast<size_t>(count++ % N)] = value; }
    bool is_full() const { return count >= N; }
    double oldest() const { return values[static_cast<size_t>(count % N)]; }
    double median() const;

    bool operator==(const Window&) const = default;
  };
  struct Bucket {
    Window<kSteps> errors = {};
    // norm(residual) / norm(gradient), and norm(residual); and medians of them, one each kLevelSteps steps.
    Window<kSteps> ratios = {}, norms = {};
    Window<kLevels> ratio_levels = {}, norm_levels = {};

    bool operator==(const Bucket&) const = default;
  };
  // A bucket of the strategy committed last, and its errors until other strategies were tried.
  struct Committed {
    uint64_t bucket = 0;  // hash of its slices and option
    Window<kSteps> errors = {};

    bool operator==(const Committed&) const = default;
  };
  struct State {
    std::vector<Bucket> buckets = {};  // of the strategy in force
    bool is_committed = false;
    std::vector<Committed> committed = {};

    bool operator==(const State&) const = default;
  };

  struct Limits {
    std::optional<double> budget = {};  // the user's
    bool names_none = false;            // the user named no compressors: those that our table admits run
    core::OptimizerFamily optimizers = core::OptimizerFamily::sgd;
  };
  explicit ErrorBudget(const Limits& limits) : limits_(limits) {}

  // Another strategy is in force, on trial or for good. These functions allocate; record() does not.
  void run(const core::Strategy& strategy);
  void commit(const core::Strategy& strategy);

  // Records a step that was finite on all ranks, by bucket. Returns the worst excess by value / allowed, of kind
  // none if all is well. A broken bucket is worse than any other.
  core::Excess record(std::span<const core::BucketLoss> losses);

  const State& state() const { return state_; }
  // Call after run() or commit() of the strategy in force.
  void restore(State state);

 private:
  void start(const core::Strategy& strategy, bool is_committed);
  void go_on(const core::Strategy& strategy);
  core::Excess excess_of_error(size_t index) const;
  core::Excess excess_of_residual(Bucket& bucket) const;

  Limits limits_;
  std::vector<std::optional<double>> allowed_;  // by bucket of the strategy in force; derived from it
  State state_;
};

}  // namespace gradtune::tuner
