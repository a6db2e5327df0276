// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// A session as Python holds it. Every call that may wait for other ranks is made without the GIL, and so is the end:
// the session's threads may hold the last reference to a tensor that Python knows. progress() and result() may be
// called by any thread; the others are the training thread's.
#pragma once

#include <torch/csrc/utils/pybind.h>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>

#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>

#include "gradtune/gradtune.h"
#include "hooks/session.h"
#include "python/ddp_hook.h"
#include "python/python_front.h"
#include "python/python_lists.h"
#include "python/replica_hook.h"

namespace gradtune {

class PythonSession {
 public:
  // With the GIL held, which it releases while it waits. `options` are those of gradtune.h by name, none of them None.
  PythonSession(py::object source, std::shared_ptr<RegistrationCount> count,
                const c10::intrusive_ptr<c10d::ProcessGroup>& group, const py::dict& options, Arrival arrival);
  ~PythonSession();
  PythonSession(const PythonSession&) = delete;
  PythonSession& operator=(const PythonSession&) = delete;

  // Where gradients are handed over: by DistributedDataParallel, whose reducer and group these are.
  void attach(c10d::Reducer& reducer, const c10::intrusive_ptr<c10d::ProcessGroup>& group);

  // Where gradients are handed over: by FSDP2, to reduce over replicas; see ReplicaHook.
  void hand_over(const torch::Tensor& unit, const torch::Tensor& reduced, double times, double divisor);

  void begin_update();
  bool end_update(size_t optimizer);  // whether the step ended with it
  void enter_no_sync() { ++*open().no_sync(); }
  void leave_no_sync();  // also of a session that was closed meanwhile
  void broadcast_buffers();
  void exclude_step();
  void export_strategy(const std::string& path);
  void save_checkpoint(const std::string& folder);
  void load_checkpoint(const std::string& folder);

  // On the thread that trains, of this moment; on others, of the last update that ended.
  Optimizer::Progress progress();
  Optimizer::Result result();

  // Ends it. `failure` is why training ended, where it did not end well: the other ranks are told. Twice does nothing.
  // In a forked child, which has none of its threads, its memory is left alone.
  void close(const std::optional<std::string>& failure);

 private:
  void run(const std::function<void(Session&)>& body);
  Session& open() const;
  bool is_trainer() const { return std::this_thread::get_id() == trainer_; }
  void take_snapshot();

  std::unique_ptr<Session> session_;  // null once it is closed
  const std::shared_ptr<PythonFront> front_ =
      std::make_shared<PythonFront>();     // the session's too: it keeps an interrupt
  std::shared_ptr<DdpBridge> bridge_;      // null where there is no DDP
  std::unique_ptr<ReplicaHook> replicas_;  // null where there is no FSDP
  std::thread::id trainer_ = std::this_thread::get_id();

  std::mutex mutex_;  // of the two; only the thread that trains changes them
  Optimizer::Progress progress_;
  Optimizer::Result result_;
  int64_t results_taken_ = -1;  // by the session when `result_` was made
};

}  // namespace gradtune
