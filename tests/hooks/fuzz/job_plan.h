// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// A random training job as plain data: the model, the options, the calls in each step, and perhaps one mistake of
// one rank. It is drawn from one seed, equally on all ranks; other code interprets it.
#pragma once

#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "engine/core/compressor.h"
#include "engine/core/gradient_table.h"
#include "tests/hooks/fuzz/features.h"

namespace gradtune::test {

// A layer or a parameter of a model. Each block takes the output of the one before.
struct BlockPlan {
  enum class Kind : uint8_t { linear, tied, convolution, batch_norm, embedding, odd, unused };
  enum class Layout : uint8_t { plain, transposed, channels_last, gaps };
  Kind kind = Kind::linear;
  core::DType dtype = core::DType::f32;
  Layout layout = Layout::plain;
  int64_t width = 16;               // number of output features
  std::vector<int64_t> shape = {};  // of an odd or unused parameter
  bool frozen = false;
  bool some_ranks = false;  // used by some ranks in some passes
  bool sparse = false;
};

struct ModelPlan {
  std::vector<BlockPlan> blocks;
  bool buffers = false;  // the model has some
  bool hooks = false;    // the user's, on the first parameter
  bool penalty = false;  // the loss contains the norm of gradients
};

struct OptimizerPlan {
  enum class Kind : uint8_t { sgd, adam, adamw, rmsprop, adagrad };
  Kind kind = Kind::sgd;
  double rate = 0.05, momentum = 0, weight_decay = 0;
  int left_out = 0;  // the number of last parameters that are left out
  bool groups = false;
};

struct StepPlan {
  enum class Zero : uint8_t { wrapped, inner, zeros, module, never };
  enum class After : uint8_t { nothing, save, failed_save, restart, restart_other, rollback, rewrap, assign, import };
  Zero zero = Zero::wrapped;
  int passes = 1;
  int unsynced = 0;  // the first passes, which run under no_sync()
  bool closure = false;
  bool clip = false, scale = false, replace = false;  // the user's changes to gradients
  bool retain = false;                                // the last pass runs backward twice through its graph
  bool skip = false;                                  // no step()
  bool evaluate = false;
  int nonfinite = -1;  // rank whose loss is infinite in the last pass
  After after = After::nothing;

  bool saves() const { return after >= After::save && after <= After::rollback; }
};

struct FaultPlan {
  std::string name;  // the feature's name
  int rank = 0;
  int step = 0;

  // Tells if that rank does something else for a long time after its mistake.
  bool keeps_going(int which) const { return which == rank && name == "fault_backward_kept"; }
};

struct OptionsPlan {
  core::Fidelity fidelity = core::Fidelity::exact;
  std::string policy = "auto";
  std::vector<std::string> compressors = {};  // empty: the default list
  int64_t tuning_budget = 0;
  int64_t lossy_after = 0;
  int pacing_mbit = 0;           // 0: none
  bool strategy_file = false;    // starts from a random strategy
  bool late = false;             // some buckets in it are due at the next forward pass
  bool unscaled = false;         // some compressor may send signs without a scale
  bool momentum_of_dgc = false;  // some compressor may keep momentum itself
};

struct JobPlan {
  uint64_t seed = 0;
  int ranks = 2;
  OptionsPlan options = {};
  OptionsPlan other_options = {};  // after a restart with other options
  ModelPlan model = {};
  OptimizerPlan optimizer = {};
  std::vector<StepPlan> steps = {};
  int freeze_at = -1;      // the first parameter is frozen before this step
  bool threads = false;    // each step runs in a thread of its own
  bool companion = false;  // a second job in the same processes, step by step in turn
  std::optional<FaultPlan> fault = {};
  std::set<std::string> features = {};  // features of this job
};

JobPlan draw_job(uint64_t seed, const Features& features);
// The second job of a job with a companion.
JobPlan draw_companion(const JobPlan& plan, const Features& features);

// The plan as one line.
std::string to_text(const JobPlan& plan);

}  // namespace gradtune::test
