// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// One wrapped optimizer on one rank: brings together gradients, executor, agreement and (on rank 0) the tuner. The
// order of things in a step:
//   backward        each gradient is brought into the arena when it is ready, and its bucket starts
//   end of backward waits for the last bucket and the control word; carries out the command that the word brought
//   step            the user's optimizer; buffers from rank 0; the clock of the step
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "engine/core/clock.h"
#include "engine/exec/executor.h"
#include "gradtune/gradtune.h"
#include "hooks/checkpoint.h"
#include "hooks/gradients.h"
#include "hooks/module_broadcast.h"
#include "hooks/options.h"
#include "hooks/peers.h"
#include "hooks/pilot.h"
#include "tuner/agreement.h"
#include "tuner/error_budget.h"
#include "tuner/strategy_file.h"

namespace gradtune {

class Session {
 public:
  Session(torch::optim::Optimizer& optimizer, torch::nn::Module& module, c10::intrusive_ptr<c10d::ProcessGroup> group,
          const Options& options,
          std::unique_ptr<const core::Clock> clock = std::make_unique<const core::SteadyClock>());
  ~Session();

  void zero_grad();
  torch::Tensor step(const std::function<torch::Tensor()>& closure);
  void enter_no_sync() { ++no_sync_; }
  void leave_no_sync() { --no_sync_; }
  void exclude_step() { excluded_ = true; }
  void save(torch::serialize::OutputArchive& archive) const { optimizer_.save(archive); }
  void load(torch::serialize::InputArchive& archive);
  void export_strategy(const std::string& path) const;
  void save_checkpoint(const std::string& folder);
  void load_checkpoint(const std::string& folder);
  Optimizer::Progress progress() const;
  Optimizer::Result result() const;
  torch::optim::Optimizer& optimizer() { return optimizer_; }

 private:
  // Set-up.
  void set_up();
  void take_imported();
  void start_tuning();
  void learn_order();
  void lay(const core::GradientTable& ordered);
  void set_gradients();

  // Checkpoints (session_checkpoint.cc).
  void check_between_steps(const char* what) const;
  tuner::SavedRank saved_rank() const;
  std::string resume(const SavedFile& file);
  core::Status fits(const SavedFile& file) const;
  void go_on(const SavedFile& file, const tuner::Action& announced);
  void start_again(const SavedFile& file, const std::string& committed);
  void take_over(const SavedFile& file);
  void copy(const core::GradientTable& table, const AllResiduals& from,
            const std::array<std::span<float>, 3>& to) const;

  // Backward.
  void on_ready(int32_t position);
  void begin_backward();
  void finish_backward();
  void forget_unused();
  std::span<double> control_word(bool finite);
  void judge_losses();
  void announce(const tuner::Action& action);
  void carry_out(const tuner::Command& command);
  void put_in_force(int32_t slot, bool is_committed);
  void prepare_received(int32_t slot, int64_t bytes);
  core::Status prepare_text(int32_t slot, const std::string& text);

  void explained(const std::function<void()>& body);
  [[noreturn]] void fail(const core::Error& error);
  void check_usable() const;
  void check_between_passes();
  std::string file_text(const policies::Candidate& candidate, bool evidence) const;

  torch::optim::Optimizer& optimizer_;
  torch::nn::Module& module_;
  const Settings settings_;
  const std::unique_ptr<const core::Clock> clock_;

  Gradients gradients_;
  Peers peers_;
  ModuleBroadcast module_broadcast_;
  exec::Executor executor_;
  std::optional<tuner::Agreement> agreement_;
  std::optional<tuner::StrategyFile> imported_;
  tuner::ErrorBudget error_budget_;
  std::vector<core::BucketLoss> losses_;          // of the step, by bucket
  std::map<int32_t, policies::Candidate> slots_;  // what this rank has prepared
  bool committed_ = false;                        // what is in force is not on trial
  std::unique_ptr<Pilot> pilot_;                  // rank 0
  std::string announced_text_;                    // the strategy that the next prepare command is about, on rank 0
  tuner::Command announced_;

  // The step under way.
  int64_t step_ = 0;
  bool in_backward_ = false;
  bool synchronised_ = false;  // since the last step()
  int no_sync_ = 0;
  bool excluded_ = true;  // the first step is
  bool order_learned_ = false;
  std::vector<bool> ready_;
  std::vector<int32_t> ready_order_;
  int64_t first_ready_ns_ = 0;
  std::vector<uint8_t> used_;
  tuner::LocalStep local_;  // for the control word: times of the step before
  core::Excess excess_;
  std::array<double, tuner::kControlWords + 1> word_{};  // the last element: some rank did not use some parameter
  int64_t step_began_ns_ = 0;
  int64_t nonfinite_steps_ = 0;
  double last_step_ms_ = 0;
  exec::StepTimes last_times_;
  std::optional<core::Error> failure_;
};

}  // namespace gradtune
