// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// Executors on several ranks of one process, with their communicators, arenas and control words, for tests of
// executors.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "engine/core/clock.h"
#include "engine/exec/executor.h"
#include "tests/engine/comm/thread_group.h"
#include "tests/engine/exec/gradient_arenas.h"
#include "tests/engine/exec/host_device.h"

namespace gradtune::exec {

// ThreadSanitizer cannot see the synchronisation of workers of a oneTBB that was built without it.
#ifdef __SANITIZE_THREAD__
constexpr int kHostThreads = 1;
#else
constexpr int kHostThreads = 2;
#endif
const ExecutorOptions kWithHost{.host_threads = kHostThreads, .timeout_ms = 60'000};

// One random gradient for each rank.
std::vector<Values> random_gradients(const core::GradientTable& table, int size, core::Rng& rng);

// The communicators of one rank.
struct RankGroups {
  core::Seat seat;
  std::unique_ptr<comm::Communicator> flat, control, intra = {}, inter = {};

  comm::Groups view() const { return {seat, *flat, *control, intra.get(), inter.get()}; }
};

// The communicators of all ranks; with levels if nodes have `local_size` ranks each.
std::vector<RankGroups> make_groups(int size, int local_size = 0, const comm::ThreadGroupOptions& data = {},
                                    const comm::ThreadGroupOptions& control = {});

class Rank {
 public:
  Rank(const core::GradientTable& table, RankGroups groups, const ExecutorOptions& options,
       std::unique_ptr<HostDevice> device = nullptr);
  ~Rank() { close(); }

  // Ends this rank: its communicators are gone, and every other call returns an error.
  void close();

  // A whole step on the calling thread, settled by the control word.
  core::Status step(const Values& gradient);

  // The parts of a step.
  void load(const Values& gradient) { gradients_.write(gradient); }
  core::Status backward();  // begin, every tensor ready in ready_order, finish
  core::Status settle();

  Values average() const { return gradients_.read(); }
  Values residual();
  bool finite() const { return word_[0] == 0; }  // by the control word; the last step's average may not be
  Executor& executor() { return *executor_; }
  HostDevice* device() { return device_.get(); }
  const Arenas& arenas() const { return gradients_.arenas(); }

  std::vector<int32_t> ready_order;  // of tensors; the table's at first

 private:
  std::unique_ptr<HostDevice> device_;
  GradientArenas gradients_;
  const core::SteadyClock clock_;
  std::array<double, 3> word_{};  // not finite; hash of the strategy in force and its negation
  RankGroups groups_;
  std::unique_ptr<Executor> executor_;
};

// All the ranks. A call on the fleet is made on each rank by its own thread.
class Fleet {
 public:
  Fleet(int size, const core::GradientTable& table, const ExecutorOptions& options = {},
        const comm::ThreadGroupOptions& data = {}, const comm::ThreadGroupOptions& control = {});
  // With options for it, each rank has a device, which then holds the gradients.
  Fleet(std::vector<RankGroups> groups, const core::GradientTable& table, const ExecutorOptions& options,
        const std::optional<HostDeviceOptions>& device = std::nullopt);

  int size() const { return static_cast<int>(ranks_.size()); }
  Rank& rank(int r) { return *ranks_[static_cast<size_t>(r)]; }

  // Prepares the strategy on all ranks, puts it in force, on trial or for good, and drops the former one.
  void run(const core::Strategy& strategy) { put_in_force(strategy, /*is_committed=*/false); }
  void commit(const core::Strategy& strategy) { put_in_force(strategy, /*is_committed=*/true); }

  std::vector<core::Status> step(const std::vector<Values>& gradients);
  std::vector<Values> residuals();

 private:
  void put_in_force(const core::Strategy& strategy, bool is_committed);

  std::vector<std::unique_ptr<Rank>> ranks_;
  int32_t slot_ = -1;
};

}  // namespace gradtune::exec
