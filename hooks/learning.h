// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// The start of a job: the first step shows which gradients come as rows and in which order they are ready. Then the
// arena is laid out in that order, the agreement between ranks starts with the baselines, and on rank 0 the tuner
// starts. An imported strategy brings its order along.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "engine/core/gradient_table.h"
#include "engine/exec/executor.h"
#include "hooks/backward_pass.h"
#include "hooks/c10d/peers.h"
#include "hooks/contents.h"
#include "hooks/forward_overlap.h"
#include "hooks/gradients.h"
#include "hooks/options.h"
#include "hooks/results.h"
#include "hooks/stepper.h"
#include "tuner/driver/driver.h"
#include "tuner/files/strategy_file.h"
#include "tuner/step_protocol.h"

namespace gradtune {

// The parts of a session that a start, or a checkpoint, sets. All must outlive who has them.
struct SessionParts {
  const Settings& settings;
  const Stepper& stepper;
  Gradients& gradients;
  Contents& contents;
  exec::Executor& executor;
  ForwardOverlap& overlap;
  BackwardPass& pass;
  Peers& peers;
  tuner::StepProtocol& protocol;
  const std::unique_ptr<tuner::Driver>& driver;  // on rank 0, once it is there
  Results& results;
};

class Learning {
 public:
  // Knowledge of the gradients: nothing before the first backward pass; then which of them come as rows; then also
  // their order.
  enum class Known : uint8_t { nothing, content, all };

  explicit Learning(const SessionParts& parts) : of_(parts) {}

  Known known() const { return known_; }
  void set_known(Known known) { known_ = known; }

  // Takes the first strategy file of the option that fits. Only rank 0 reads it. Its order of tensors is the order of
  // the arena from the first step on. Throws if no file fits.
  void import();
  const std::optional<tuner::StrategyFile>& imported() const { return imported_; }
  void set_imported(std::optional<tuner::StrategyFile> imported) { imported_ = std::move(imported); }

  // Called whenever more is known of the gradients. It prepares the baselines, starts the agreement at epoch 1, and on
  // rank 0 starts a tuner for this table once everything is known.
  void start();

  // Called at the end of the first pass, which held back its gradients. So a table whose gradient has few rows is
  // never laid out densely.
  void learn_content();
  // Called after the first step: lays out the arena in the order in which rank 0's gradients were ready.
  void learn_order();

  // Copies the content of a table with the same tensors. Returns their positions in this session's table.
  std::vector<int32_t> take_content(const core::GradientTable& from);
  // Lays out the arena in the order of that table, with its content.
  void lay(const core::GradientTable& ordered) { of_.gradients.lay(take_content(ordered)); }
  // Tells the parts of new gradients.
  void set_tensors();

 private:
  const SessionParts of_;
  Known known_ = Known::nothing;
  std::optional<tuner::StrategyFile> imported_;
};

}  // namespace gradtune
