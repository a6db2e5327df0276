// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// Executors on several ranks of one process, with their communicators, arenas and control words: what the tests of
// executors have in common. Gradients are given and averages and residuals read as flat vectors, tensor after tensor in the
// table's order, whatever the arenas look like.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "engine/comm/thread_group.h"
#include "engine/core/clock.h"
#include "engine/core/gradient_table.h"
#include "engine/core/rng.h"
#include "engine/core/strategy.h"
#include "engine/exec/executor.h"

namespace gradtune::exec {

using Values = std::vector<float>;

core::GradientTable make_table(const std::vector<std::pair<int64_t, core::DType>>& tensors);

// Of three dtypes in turn, and of sizes that no block, shard or alignment divides.
core::GradientTable mixed_table();

// Uniform in [-1, 1), exact in each tensor's dtype; about a tenth are zero.
Values random_gradient(const core::GradientTable& table, core::Rng& rng);

float round_to(core::DType dtype, float value);

// One strategy from the printed form of its option: buckets of at most `bytes` bytes.
core::Strategy make_strategy(const core::GradientTable& table, const std::string& option, int64_t bytes, int in_flight);

// Every family of programs with every compressor that it can have, at one place.
std::vector<std::string> all_options(core::Place place);

class Rank {
 public:
  Rank(const core::GradientTable& table, std::unique_ptr<comm::Communicator> data,
       std::unique_ptr<comm::Communicator> control, const ExecutorOptions& options);
  ~Rank();

  // Ends this rank: its communicators are gone, and everything else answers with an error.
  void close();

  // A whole step on the calling thread, settled by what the control word says.
  core::Status step(const Values& gradient);

  // The parts of a step.
  void load(const Values& gradient);  // into the arenas
  core::Status backward();            // begin, every tensor ready in ready_order, finish
  core::Status settle() { return executor_->settle(word_[0] == 0); }

  Values average() const;
  Values residual();  // zeros where none are allocated; only under no strategy or a fresh one
  bool finite() const { return word_[0] == 0; }
  Executor& executor() { return *executor_; }
  const Arenas& arenas() const { return arenas_; }

  std::vector<int32_t> ready_order;  // of tensors; the table's at first

 private:
  template <typename Visit>
  void visit(Visit visit) const;  // (position in the flat vector, dtype, position in its arena)

  const core::GradientTable table_;
  const core::SteadyClock clock_;
  std::array<AlignedBytes, 3> memory_;
  Arenas arenas_{};
  std::array<double, 3> word_{};  // not finite; hash of the strategy in force and its negation
  std::unique_ptr<comm::Communicator> data_, control_;
  std::unique_ptr<Executor> executor_;
};

// All the ranks. What is called on the fleet is called on each rank by a thread of its own.
class Fleet {
 public:
  Fleet(int size, const core::GradientTable& table, const ExecutorOptions& options = {},
        comm::ThreadGroupOptions data = {}, comm::ThreadGroupOptions control = {});

  int size() const { return static_cast<int>(ranks_.size()); }
  Rank& rank(int r) { return *ranks_[static_cast<size_t>(r)]; }

  // Prepares the strategy in `slot` on all ranks, puts it in force and drops what was.
  void run(const core::Strategy& strategy);

  std::vector<core::Status> step(const std::vector<Values>& gradients);
  std::vector<Values> residuals();

 private:
  std::vector<std::unique_ptr<Rank>> ranks_;
  int32_t slot_ = -1;
};

}  // namespace gradtune::exec
