// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// A random training job as plain data: the model, the options, what is called in each step, and perhaps one mistake of
// one rank. It is drawn from one seed, alike on all ranks; others interpret it.
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

// A layer or a parameter of a model in which each block takes what the one before gave.
struct BlockPlan {
  enum class Kind : uint8_t { linear, tied, convolution, batch_norm, embedding, odd, unused };
  enum class Layout : uint8_t { plain, transposed, channels_last, gaps };
  Kind kind = Kind::linear;
  core::DType dtype = core::DType::f32;
  Layout layout = Layout::plain;
  int64_t width = 16;               // features that it gives
  std::vector<int64_t> shape = {};  // of the parameter: odd, unused
  bool frozen = false;
  bool some_ranks = false;  // used by some ranks in some passes
  bool sparse = false;
};

struct ModelPlan {
  std::vector<BlockPlan> blocks;
  bool buffers = false;  // of its own
  bool hooks = false;    // of the user, on the first parameter
  bool penalty = false;  // the loss holds the norm of gradients
};

struct OptimizerPlan {
  enum class Kind : uint8_t { sgd, adam, adamw, rmsprop, adagrad };
  Kind kind = Kind::sgd;
  double rate = 0.05, momentum = 0, weight_decay = 0;
  int left_out = 0;  // parameters, the last ones
  bool groups = false;
};

struct StepPlan {
  enum class Zero : uint8_t { wrapped, inner, zeros, module, never };
  enum class After : uint8_t { nothing, save, failed_save, restart, restart_other, rollback, rewrap, assign, import };
  Zero zero = Zero::wrapped;
  int passes = 1;
  int unsynced = 0;  // of these, the first ones, under no_sync()
  bool closure = false;
  bool clip = false, scale = false, replace = false;  // what the user does to gradients
  bool retain = false;                                // the last pass goes twice through its graph
  bool skip = false;                                  // no step()
  bool evaluate = false;
  int nonfinite = -1;  // rank whose loss is infinite in the last pass
  After after = After::nothing;

  bool saves() const { return after >= After::save && after <= After::rollback; }
};

struct FaultPlan {
  std::string name;  // of the feature
  int rank = 0;
  int step = 0;

  // Whether that rank does something else for long after its mistake.
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
  bool late = false;             // in which some buckets are due at the next forward pass
  bool unscaled = false;         // some compressor may send signs without a scale
  bool momentum_of_dgc = false;  // some compressor may keep momentum itself
};

struct JobPlan {
  uint64_t seed = 0;
  int ranks = 2;
  OptionsPlan options = {};
  OptionsPlan other_options = {};  // after a restart with others
  ModelPlan model = {};
  OptimizerPlan optimizer = {};
  std::vector<StepPlan> steps = {};
  int freeze_at = -1;      // step before which the first parameter is frozen
  bool threads = false;    // each step in a thread of its own
  bool companion = false;  // a second job in the same processes, step by step in turn
  std::optional<FaultPlan> fault = {};
  std::set<std::string> features = {};  // that it has
};

JobPlan draw_job(uint64_t seed, const Features& features);
// The second job of one with a companion.
JobPlan draw_companion(const JobPlan& plan, const Features& features);

// One line.
std::string to_text(const JobPlan& plan);

}  // namespace gradtune::test
