// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// Runs a random job on one rank as a user's program would, and compares it with plain training after every pass and
// every step. Jobs with a mistake are not compared: only their end matters.
#pragma once

#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "gradtune/gradtune.h"
#include "tests/hooks/fuzz/job_check.h"
#include "tests/hooks/fuzz/job_plan.h"
#include "tests/hooks/fuzz/plain_training.h"
#include "tests/hooks/fuzz/random_model.h"

namespace gradtune::test {

// By a clock that all processes of this machine share.
double now_s();

class JobRunner {
 public:
  // Files go to the folder, which all ranks share.
  JobRunner(const JobPlan& plan, c10::intrusive_ptr<c10d::ProcessGroup> group, std::string folder);

  void run();

  // The parts of run().
  void begin();
  int steps() const { return static_cast<int>(plan_.steps.size()); }
  void train(int step);

  int64_t switches() const { return switches_; }  // switches of strategies so far

 private:
  Options options() const;
  void wrap_model();
  void run_step(int step);
  torch::Tensor passes(int step);
  torch::Tensor pass(int step, int index, bool synced);
  void check_pass();
  void edit_gradients(const StepPlan& step);
  void replace_gradients();
  void check_step(const StepPlan& step);
  void evaluate();
  void do_after(StepPlan::After after);
  void restart();
  void roll_back();
  void import_strategy();
  void expect_failed_save();
  bool is_wrong(const char* fault) const;  // on this rank
  bool is_wrong(const char* fault, int step) const;
  RandomModelImpl::Between exception_at(int step) const;
  void run_step_and_catch(int step);
  void make_mistake(int step);
  std::string file(const std::string& name) const { return folder_ + "/" + name; }

  JobPlan plan_;
  OptionsPlan options_;  // in force
  const c10::intrusive_ptr<c10d::ProcessGroup> group_;
  const int rank_;
  const std::string folder_;
  RandomModel model_{nullptr};
  std::vector<torch::Tensor> parameters_;
  std::unique_ptr<torch::optim::Optimizer> inner_;
  std::optional<Optimizer> optimizer_;
  std::optional<PlainTraining> plain_;
  LossyCheck lossy_;
  bool owes_ = false;                 // residuals of lossy compressors may be left
  std::string kept_, kept_of_plain_;  // saved states, for a rollback
  std::string strategy_;              // file of the first strategy
  int64_t epoch_ = 0, switches_ = 0;
};

}  // namespace gradtune::test
