// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
#include "engine/core/rng.h"
#include "tests/hooks/fuzz/job_plan.h"

namespace gradtune::test {
namespace {

// Every question draws for any answer, so that leaving out a feature changes as little else as possible.
class Draw {
 public:
  Draw(core::Rng rng, const Features& features, std::set<std::string>& used)
      : rng_(rng), features_(features), used_(used) {}

  int below(int bound) { return static_cast<int>(rng_.below(static_cast<uint64_t>(bound))); }
  bool chance(double probability) { return rng_.uniform() < probability; }
  bool wants(const std::string& feature, double probability) {
    const bool drawn = chance(probability) && features_.has(feature);
    if (drawn) used_.insert(feature);
    return drawn;
  }
  template <typename T>
  T one_of(const std::vector<T>& items) {
    return items[static_cast<size_t>(below(static_cast<int>(items.size())))];
  }

 private:
  core::Rng rng_;
  const Features& features_;
  std::set<std::string>& used_;
};

BlockPlan draw_linear(Draw& draw, bool may_be_frozen) {
  BlockPlan block{.width = draw.one_of<int64_t>({1, 5, 16, 24, 33, 64})};
  if (draw.wants("large", 0.1)) block.width = 300;
  if (draw.wants("huge", 0.015)) block.width = 1100;
  if (draw.wants("bf16", 0.15)) block.dtype = core::DType::bf16;
  if (draw.wants("f16", 0.1)) block.dtype = core::DType::f16;
  if (draw.wants("transposed", 0.2)) block.layout = BlockPlan::Layout::transposed;
  if (draw.wants("gaps", 0.08)) block.layout = BlockPlan::Layout::gaps;
  if (draw.wants("some_ranks", 0.15)) block.some_ranks = true;
  if (draw.wants("frozen", 0.12) && may_be_frozen) block.frozen = true;
  return block;
}

BlockPlan draw_block(Draw& draw) {
  BlockPlan block = draw_linear(draw, /*may_be_frozen=*/true);
  const int kind = draw.below(10);
  if (kind == 3 && draw.wants("tied", 1)) block.kind = BlockPlan::Kind::tied;
  if (kind == 4 || kind == 5) {
    block.kind = BlockPlan::Kind::convolution;
    block.width = 16 * (1 + draw.below(4));
    block.layout = draw.wants("channels_last", 0.6) ? BlockPlan::Layout::channels_last : BlockPlan::Layout::plain;
  }
  if (kind == 6 && draw.wants("batch_norm", 1)) block.kind = BlockPlan::Kind::batch_norm;
  if (kind == 7 && draw.wants("embedding", 1)) {
    block.kind = BlockPlan::Kind::embedding;
    block.sparse = draw.wants("sparse", 0.4);
    if (block.sparse) {
      block.dtype = core::DType::f32;  // LibTorch does not add up other types
      // Both layouts for one tensor: that is rare by chance alone.
      block.layout = draw.wants("transposed", 0.5) ? BlockPlan::Layout::transposed : BlockPlan::Layout::plain;
    }
  }
  if (kind == 8 && draw.wants("odd", 1)) {
    block.kind = BlockPlan::Kind::odd;
    block.shape = draw.one_of<std::vector<int64_t>>({{}, {1}, {7}, {3, 1, 2}, {1, 1, 1, 13}, {257}});
  }
  if (kind == 9 && draw.wants("unused", 1)) {
    block.kind = BlockPlan::Kind::unused;
    block.shape = draw.one_of<std::vector<int64_t>>({{}, {11}, {3, 5}, {40, 70}});
  }
  return block;
}

ModelPlan draw_model(Draw& draw, bool races) {
  ModelPlan model;
  model.blocks.push_back(draw_linear(draw, /*may_be_frozen=*/false));
  for (int b = 0; races && b < 2; ++b) {
    BlockPlan block = draw_linear(draw, /*may_be_frozen=*/false);
    block.width = 200 + 50 * draw.below(5);
    model.blocks.push_back(block);
  }
  const int count = draw.below(6);
  for (int b = 0; b < count; ++b) model.blocks.push_back(draw_block(draw));
  const auto empty = draw.one_of<std::vector<int64_t>>({{0}, {0, 5}, {3, 0}});
  const int place = 1 + draw.below(static_cast<int>(model.blocks.size()));
  const auto insert = [&](BlockPlan::Kind kind) {
    model.blocks.insert(model.blocks.begin() + place, {.kind = kind, .shape = empty});
  };
  if (draw.wants("empty", 0.15)) insert(BlockPlan::Kind::odd);
  if (draw.wants("empty_unused", 0.1)) insert(BlockPlan::Kind::unused);
  for (int b = draw.wants("many", 0.05) ? 40 : 0; b > 0; --b) model.blocks.push_back({.width = 5});
  model.buffers = draw.wants("buffers", 0.3);
  model.hooks = draw.wants("hooks", 0.1);
  bool sparse = false;
  for (const BlockPlan& block : model.blocks) sparse = sparse || block.sparse;
  model.penalty = !sparse && draw.wants("penalty", 0.1);
  return model;
}

bool has_dtype(const ModelPlan& model, core::DType dtype) {
  for (const BlockPlan& block : model.blocks) {
    if (block.dtype == dtype) return true;
  }
  return false;
}

OptimizerPlan draw_optimizer(Draw& draw, const ModelPlan& model) {
  OptimizerPlan optimizer;
  optimizer.kind = static_cast<OptimizerPlan::Kind>(draw.below(5));
  // The epsilon of other optimizers vanishes in float16.
  if (has_dtype(model, core::DType::f16) || draw.chance(0.4)) optimizer.kind = OptimizerPlan::Kind::sgd;
  optimizer.momentum = draw.chance(0.6) ? 0.9 : 0;
  optimizer.weight_decay = draw.chance(0.4) ? 0.01 : 0;
  for (const BlockPlan& block : model.blocks) {
    if (!block.sparse) continue;  // others refuse sparse gradients
    optimizer.kind = OptimizerPlan::Kind::sgd;
    optimizer.weight_decay = 0;
  }
  optimizer.rate = optimizer.kind == OptimizerPlan::Kind::sgd ? 0.05 : 0.002;
  optimizer.left_out = draw.wants("left_out", 0.1) ? 1 + draw.below(2) : 0;
  optimizer.groups = draw.wants("groups", 0.2);
  return optimizer;
}

OptionsPlan draw_options(Draw& draw, const OptimizerPlan& optimizer, bool races) {
  OptionsPlan options;
  const int fidelity = draw.below(3);
  if (fidelity == 1 && draw.wants("half", 1)) options.fidelity = core::Fidelity::half;
  if (fidelity == 2 && draw.wants("lossy", 1)) options.fidelity = core::Fidelity::lossy;
  options.policy = draw.one_of<std::string>({"auto", "auto", "mergecomp", "exhaustive", "exhaustive"});
  options.tuning_budget = draw.wants("tuning", 0.85) ? 10 + draw.below(90) : 0;
  options.pacing_mbit = draw.wants("pacing", 0.4) ? draw.one_of<int>({100, 300, 1000}) : 0;
  if (races) {
    options.tuning_budget = 300;
    options.pacing_mbit = draw.one_of<int>({150, 300});
  }
  options.strategy_file = draw.wants("strategy_file", 0.3) && !races;
  options.late = draw.wants("late", 0.5);
  std::vector<std::string> among = {"packed"};
  if (options.fidelity >= core::Fidelity::half) {
    among.insert(among.end(), {"bf16", "bf16packed", "fp16"});
  }
  const bool has_momentum = optimizer.kind != OptimizerPlan::Kind::sgd || optimizer.momentum != 0;
  if (options.fidelity == core::Fidelity::lossy) {
    among.insert(among.end(), {"topk:0.1", "topk:0.01", "threshk:0.05", "randk:0.1", "powersgd:2", "int8", "fp8e4m3",
                               "fp8e5m2", "natural", "terngrad", "qsgd", "onebit", "efsignsgd", "thc"});
    options.lossy_after = draw.chance(0.2) ? draw.below(20) : 0;
    options.unscaled = draw.wants("signs", 0.1);
    if (options.unscaled) among.insert(among.end(), {"signsgd", "signum"});
    options.momentum_of_dgc = !has_momentum && draw.wants("dgc", 0.3);
    if (options.momentum_of_dgc) among.push_back("dgc:0.05");
  }
  if (!draw.chance(0.7)) return options;
  const int count = 1 + draw.below(4);
  for (int c = 0; c < count; ++c) options.compressors.push_back(draw.one_of(among));
  return options;
}

StepPlan::Zero draw_zero(Draw& draw) {
  StepPlan::Zero zero = StepPlan::Zero::wrapped;
  if (draw.wants("zero_inner", 0.1)) zero = StepPlan::Zero::inner;
  if (draw.wants("zero_zeros", 0.1)) zero = StepPlan::Zero::zeros;
  if (draw.wants("zero_module", 0.1)) zero = StepPlan::Zero::module;
  if (draw.wants("zero_never", 0.05)) zero = StepPlan::Zero::never;
  return zero;
}

StepPlan::After draw_after(Draw& draw, bool skipped) {
  StepPlan::After after = StepPlan::After::nothing;
  if (draw.wants("save", 0.03)) after = StepPlan::After::save;
  if (draw.wants("failed_save", 0.02)) after = StepPlan::After::failed_save;
  if (draw.wants("restart", 0.03)) after = StepPlan::After::restart;
  if (draw.wants("restart_other", 0.02)) after = StepPlan::After::restart_other;
  if (draw.wants("rollback", 0.04)) after = StepPlan::After::rollback;
  if (skipped && !draw.wants("save_after_skip", 0.5)) after = StepPlan::After::nothing;
  if (draw.wants("rewrap", 0.02)) after = StepPlan::After::rewrap;
  if (draw.wants("rewrap_assign", 0.02)) after = StepPlan::After::assign;
  if (draw.wants("import", 0.03)) after = StepPlan::After::import;
  return after;
}

std::vector<StepPlan> draw_steps(Draw& draw, int ranks, bool races) {
  // Not every job does everything, so that each feature of a step also occurs alone.
  const bool accumulates = draw.wants("no_sync", 0.3), repeats = draw.wants("two_passes", 0.2);
  const bool closures = draw.wants("closure", 0.2), clips = draw.wants("clip", 0.3);
  const bool replaces = draw.wants("replace", 0.15), retains = draw.wants("retain", 0.1);
  const bool scales = draw.wants("scale", 0.15), skips = draw.wants("skip", 0.3);
  const bool evaluates = draw.wants("evaluate", 0.3), infinite = draw.wants("nonfinite", 0.15);
  std::vector<StepPlan> steps(static_cast<size_t>(races ? 90 : 8 + draw.below(40)));
  bool must_zero = false;
  for (StepPlan& step : steps) {
    step.zero = draw_zero(draw);
    // Gradients that are not finite must go, even from parameters that are not in the optimizer.
    if (must_zero && step.zero != StepPlan::Zero::module) step.zero = StepPlan::Zero::wrapped;
    if (accumulates && draw.chance(0.5)) step.unsynced = 1 + draw.below(2);
    step.passes = step.unsynced + (repeats && draw.chance(0.5) ? 2 : 1);
    step.closure = closures && draw.chance(0.5);
    step.clip = clips && draw.chance(0.7);
    step.scale = scales && draw.chance(0.3);
    step.replace = replaces && draw.chance(0.3);
    step.retain = retains && draw.chance(0.3);
    step.skip = skips && draw.chance(0.15);
    step.evaluate = evaluates && draw.chance(0.2);
    if (infinite && draw.chance(0.1)) {
      step.nonfinite = draw.below(ranks);
      step.skip = true;
      step.clip = step.scale = step.retain = false;
    }
    if (step.skip) step.closure = false;
    must_zero = step.nonfinite >= 0;
    if (!races || draw.chance(0.1)) step.after = draw_after(draw, step.skip);
  }
  return steps;
}

std::optional<FaultPlan> draw_fault(Draw& draw, const Features& features, const JobPlan& plan) {
  std::vector<std::string> kinds;
  for (const Feature& feature : all_features()) {
    if (feature.name.starts_with("fault_")) kinds.emplace_back(feature.name);
  }
  const bool drawn = draw.chance(0.25);
  FaultPlan fault{.name = draw.one_of(kinds), .rank = draw.below(plan.ranks), .step = draw.below(6)};
  if (!drawn || !features.has(fault.name)) return std::nullopt;
  return fault;
}

}  // namespace

JobPlan draw_job(uint64_t seed, const Features& features) {
  JobPlan plan{.seed = seed};
  const auto draw = [&](const char* part) { return Draw(core::Rng(seed).fork(part), features, plan.features); };
  Draw sizes = draw("sizes"), model = draw("model"), optimizer = draw("optimizer"), options = draw("options"),
       steps = draw("steps"), fault = draw("fault");
  plan.ranks = sizes.one_of<int>({2, 2, 2, 3, 3, 4});
  // On a slow link there is something to gain, and the tuner tries many strategies if it is given the time.
  const bool races = sizes.chance(0.2) && features.has("tuning") && features.has("pacing");
  plan.model = draw_model(model, races);
  plan.optimizer = draw_optimizer(optimizer, plan.model);
  plan.options = draw_options(options, plan.optimizer, races);
  plan.other_options = draw_options(options, plan.optimizer, races);
  plan.steps = draw_steps(steps, plan.ranks, races);
  plan.freeze_at = steps.wants("freeze", 0.1) ? steps.below(20) : -1;
  for (StepPlan& step : plan.steps) {
    // A new wrap would know one parameter less than the saved and exported files.
    if (plan.freeze_at >= 0 && step.after > StepPlan::After::failed_save) step.after = StepPlan::After::nothing;
  }
  plan.threads = steps.wants("threads", 0.1);
  plan.companion = steps.wants("companion", 0.1);
  plan.fault = draw_fault(fault, features, plan);
  if (plan.fault) {
    plan.features.insert(plan.fault->name);
    plan.companion = false;
    plan.freeze_at = -1;
    // A matrix of one row has the same layout when it is transposed, which is no mistake.
    int64_t& width = plan.model.blocks[0].width;
    if (plan.fault->name == "fault_format" && width == 1) width = 5;
    // A mistake early, and some steps in which it must be noticed.
    plan.steps.resize(static_cast<size_t>(plan.fault->step) + 8);
    for (auto step = plan.steps.begin() + plan.fault->step; step != plan.steps.end(); ++step) *step = StepPlan();
  }
  return plan;
}

JobPlan draw_companion(const JobPlan& plan, const Features& features) {
  JobPlan other = draw_job(plan.seed + 1'000'000'000, features);
  other.ranks = plan.ranks;
  other.fault.reset();
  other.companion = false;
  for (StepPlan& step : other.steps) step.nonfinite = std::min(step.nonfinite, plan.ranks - 1);
  return other;
}

}  // namespace gradtune::test
