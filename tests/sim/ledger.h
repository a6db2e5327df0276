// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// The ledger of a job, in fp64 and element by element. Over all ranks, the given values plus the former residuals
// equal the applied values plus the new residuals, in every step and across every switch of strategy. A step that
// was not finite leaves residuals unchanged. Residuals of elements without error feedback stay until a strategy is
// committed, and then drain as in draining.h, so that no step applies much more than the gradient. So do residuals
// that other codecs left in a bucket with error feedback, which begins without any: its first step applies no more
// than kMostApplied times the gradient.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "engine/exec/draining.h"
#include "tests/sim/simulated_rank.h"

namespace gradtune::sim {

// A compressor may send up to norm(p) + norm(p - decode(encode(p))) of p, and p is the gradient plus the drained
// part of residuals; the average may be encoded once more.
constexpr double kMostApplied = 2 * (1 + exec::kDrainShare);

class Ledger {
 public:
  Ledger(const core::GradientTable& table, int size) : table_(table), size_(static_cast<size_t>(size)) {}

  // Checks the step, by expectations of GoogleTest, once all ranks have added their values.
  void add(StepValues values);

  int64_t steps() const { return steps_; }                  // number of checked steps
  int64_t drains() const { return drains_; }                // of one bucket on one rank in one step
  int64_t emptied() const { return emptied_; }              // number of these that left nothing
  int64_t parked_drains() const { return parked_drains_; }  // the same, with residuals of other codecs parked
  int64_t switches() const { return switches_; }            // first steps of a bucket after other codecs left residuals

 private:
  void check(const std::vector<StepValues>& ranks) const;
  void check_spread(const std::vector<StepValues>& ranks) const;
  void check_finite(const std::vector<StepValues>& ranks) const;
  void check_drains(const std::vector<StepValues>& ranks);
  void check_parked(const std::vector<StepValues>& ranks);

  const core::GradientTable table_;
  const size_t size_;
  std::map<int64_t, std::vector<std::optional<StepValues>>> open_;  // by step
  std::map<int, exec::Values> residuals_;                           // of each rank after its last step
  bool is_committed_ = false;                                       // the strategy in force is committed
  std::vector<std::string> holders_;                                // codecs that left an element's residual
  int64_t steps_ = 0, drains_ = 0, emptied_ = 0, parked_drains_ = 0, switches_ = 0;
};

}  // namespace gradtune::sim
