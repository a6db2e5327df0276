// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// A session that Python owns. Every call that may wait for other ranks releases the GIL. So does the destructor,
// because the session's threads may hold the last reference to a tensor that Python knows. Any thread may call
// progress() and result(); only the training thread may call the others.
#pragma once

#include <torch/csrc/utils/pybind.h>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>

#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "gradtune/gradtune.h"
#include "gradtune/rounds.h"
#include "hooks/rounds_file.h"
#include "hooks/session.h"
#include "python/ddp_hook.h"
#include "python/python_front.h"
#include "python/python_lists.h"
#include "python/replica_units.h"
#include "tuner/round_length.h"

namespace gradtune {

class PythonSession {
 public:
  // The component that brings gradients: gradtune's own hooks, the reducer of DistributedDataParallel, FSDP2, or rounds
  // (python_rounds.h), which bring changes of parameters in their place.
  enum class Brings : uint8_t { hooks, ddp, units, changes };

  // Called with the GIL held, which it releases while it waits. `options` are those of gradtune.h by name, none of
  // them None. With several fragments, each has a session; progress() and result() are of the first one.
  PythonSession(py::object source, std::shared_ptr<RegistrationCount> count,
                const c10::intrusive_ptr<c10d::ProcessGroup>& group, const py::dict& options, Brings brings,
                int64_t fragments = 1);
  virtual ~PythonSession();
  PythonSession(const PythonSession&) = delete;
  PythonSession& operator=(const PythonSession&) = delete;

  // With DistributedDataParallel: attaches to its reducer and group.
  void attach(c10d::Reducer& reducer, const c10::intrusive_ptr<c10d::ProcessGroup>& group);

  // With the units of FSDP2, whose results are sums: takes one in a backward pass of autograd, or between begin_pass()
  // and end_pass(); see ReplicaUnits and Session.
  void hand_over(const torch::Tensor& unit, const torch::Tensor& reduced, const torch::Tensor& value, double divisor);
  void begin_pass();
  void end_pass();

  virtual void begin_update();
  virtual bool end_update(size_t optimizer);  // returns true if this ended the step
  void enter_no_sync() { ++*open().no_sync(); }
  void leave_no_sync();  // also works after the session was closed
  void broadcast_buffers();
  void exclude_step();
  void export_strategy(const std::string& path);
  virtual void save_checkpoint(const std::string& folder);
  virtual void load_checkpoint(const std::string& folder);

  // On the training thread these are current; on other threads they date from the end of the last update.
  Optimizer::Progress progress();
  Optimizer::Result result();

  // Ends the session. `failure` is the reason if training failed; the other ranks are told. A second call does
  // nothing. In a forked child, which has none of the session's threads, the session's memory is left alone.
  void close(const std::optional<std::string>& failure);

  // Learns from each step how long a round would be (tuner/round_length.h).
  void learn_round_length(const tuner::UpdatesARound& allowed);
  void compare_rounds(const RoundOptions& options);
  // As save_rounds() and load_rounds() of hooks/rounds_file.h. A state of rounds that does not fit is refused.
  void save_synchronous(const std::string& folder, int64_t dense_steps);
  SavedRounds saved_rounds(const std::string& folder, int64_t fragments);
  void check_outer_momenta(const std::vector<torch::Tensor>& momenta);
  tuner::RoundShape round_shape() const { return length_ ? length_->round() : tuner::RoundShape{}; }

 protected:
  // Calls it with the first session, or with each one, without the GIL, and throws its error as Python's.
  void run(const std::function<void(Session&)>& body);
  void run_each(const std::function<void(Session&)>& body);
  const std::vector<std::unique_ptr<Session>>& sessions() const { return sessions_; }
  void update_ended();  // makes progress() current, within run()
  std::vector<torch::Tensor> trained() const;

 private:
  Session& open() const;
  bool is_trainer() const { return std::this_thread::get_id() == trainer_; }
  void take_snapshot();

  std::vector<std::unique_ptr<Session>> sessions_;  // empty after close()
  const std::shared_ptr<PythonFront> front_ =
      std::make_shared<PythonFront>();   // shared with the session, because it keeps an interrupt
  std::shared_ptr<DdpBridge> bridge_;    // null without DDP
  std::unique_ptr<ReplicaUnits> units_;  // null without FSDP
  std::optional<tuner::RoundLength> length_;
  std::thread::id trainer_ = std::this_thread::get_id();

  std::mutex mutex_;  // guards the next two; only the training thread changes them
  Optimizer::Progress progress_;
  Optimizer::Result result_;
  std::optional<uint64_t> result_hash_;  // of the sessions' counts of strategies and results when `result_` was made
};

}  // namespace gradtune
