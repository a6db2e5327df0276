// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// One simulated rank of a training job: the step protocol of tuner/step_protocol.h, as in a training job, on
// simulated time. Rank 0 also has a leader: the driver of a training job (tuner/driver/driver.h), or a script. It
// differs from a session:
// - There is no module, so gradients are given, and the order of tensors is known from the start.
// - The driver learns no times of operations, and no contents of gradients.
// - No step waits. Forward stops for late buckets at the reads of the table's tensors, and commands that prepare or
//   switch strategies wait for all of them.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "engine/core/rng.h"
#include "policies/policy.h"
#include "tests/sim/recording.h"
#include "tests/sim/simulated_executor.h"
#include "tests/sim/world.h"
#include "tuner/driver/driver.h"
#include "tuner/step_protocol.h"
#include "tuner/tuner.h"

namespace gradtune::sim {

// The record of a rank's step. `digest` covers the bits of its averages and residuals after the step.
struct StepRecord {
  int64_t step = 0, epoch = 0;
  core::Strategy strategy;
  bool finite = true;
  double step_ms = 0;
  uint64_t digest = 0;
  tuner::Command command = {};  // carried out at its end

  bool operator==(const StepRecord&) const = default;
};

// The values behind a record. `before` and `after` are residuals.
struct StepValues {
  int rank = 0;
  StepRecord record = {};
  exec::Values given = {}, average = {};
  exec::Values before = {}, after = {};                // all residuals
  exec::Values parked_before = {}, parked_after = {};  // the parked part of them
};

struct RankOptions {
  core::GradientTable table = {};
  core::Fidelity fidelity = core::Fidelity::lossy;
  ExecutorModel executor = {};
  int64_t forward_ns = 2'000'000;
  int64_t update_ns = 200'000;   // for the optimizer's step
  int64_t prepare_ns = 500'000;  // for a strategy
  double noise = 0;              // the largest share by which forward and backward take longer or shorter
  std::vector<policies::Candidate> start = {};  // slots 0, 1, ...; the first one is in force
  int64_t steps = 10;
  tuner::ErrorBudget::Limits limits = {};

  std::function<exec::Values(int rank, int64_t step)> gradient = {};
  // The text that arrives at a rank after a broadcast of a strategy; empty: the strategy itself.
  std::function<std::string(int rank, const std::string& text)> received = {};
  std::function<void(StepValues)> on_values = {};  // called after every step; without it values are not read out
};

// Rank 0 has one of these, which gives the commands; without any, no command is given.
struct Leader {
  tuner::Driver* driver = nullptr;  // started for the table; must outlive the rank
  std::function<tuner::Action(const core::StepReport&)> script = {};
};

class SimulatedRank final : private comm::CompletionSink {
 public:
  // `options` must outlive the rank. A rank that is destroyed with work in progress needs a world that has crashed
  // it.
  SimulatedRank(World& world, std::unique_ptr<comm::Communicator> data, std::unique_ptr<comm::Communicator> control,
                const RankOptions& options, Leader leader);

  bool ended() const { return error_ || static_cast<int64_t>(steps_.size()) == options_.steps; }
  const std::optional<core::Error>& error() const { return error_; }
  int64_t ended_ns() const { return ended_ns_; }
  int64_t step() const { return static_cast<int64_t>(steps_.size()); }  // step under way

  const std::vector<StepRecord>& steps() const { return steps_; }  // steps that are over
  const CallLog& calls() const { return calls_; }
  std::string exported() const;  // the strategy file of the strategy in force

 private:
  // A place at which forward stops for a late bucket.
  struct Gate {
    int64_t at_ns;  // since the beginning of forward
    int32_t bucket;
  };
  std::vector<Gate> gates(int64_t forward_ns) const;

  // The parts of a step, in order.
  void begin_step();
  void forward(std::vector<Gate> gates, size_t next, int64_t since_ns, double pace);
  void begin_backward(double pace);
  void finish_backward(const core::Status& status);
  void record(StepRecord& record);
  void settle(World::Event then);
  void carry_out(const tuner::Command& command);
  void receive_strategy();
  void lead();
  void announce(const tuner::Action& action, std::string text);
  void end_step();

  void name_those_who_differ(const core::Error& error);
  std::string file_text(const policies::Candidate& candidate) const;
  void fail(const core::Error& error);

  // One collective on the control communicator outside of backward.
  void start(comm::Collective collective, SimulatedExecutor::Done then);
  void complete(uint64_t token, core::Status status, core::Fence) override;

  World& world_;
  const RankOptions& options_;
  const int rank_;
  const Leader leader_;
  core::Rng rng_;
  exec::GradientArenas gradients_;
  CallLog calls_;
  std::unique_ptr<comm::Communicator> data_, control_;
  SimulatedExecutor executor_;
  tuner::StepProtocol protocol_;

  // The record of the step under way.
  StepRecord record_;
  StepRecord* unrecorded_ = nullptr;  // of a step whose values have not all arrived yet
  StepValues values_;                 // of that step
  tuner::StepProtocol::Received received_;
  int64_t began_ns_ = 0;
  std::string received_text_;
  std::vector<uint64_t> identities_;  // this rank's own, then those of all
  SimulatedExecutor::Done then_;

  std::vector<StepRecord> steps_;
  std::optional<core::Error> error_;
  int64_t ended_ns_ = 0;
};

}  // namespace gradtune::sim
