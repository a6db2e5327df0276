// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
#include "tests/hooks/fuzz/job_plan.h"

namespace gradtune::test {
namespace {

std::string to_text(const BlockPlan& block) {
  static constexpr const char* kKinds[] = {"linear", "tied", "convolution", "batch_norm", "embedding", "odd", "unused"};
  static constexpr const char* kLayouts[] = {"", "/transposed", "/channels_last", "/gaps"};
  std::string text = kKinds[static_cast<size_t>(block.kind)];
  if (block.kind == BlockPlan::Kind::odd || block.kind == BlockPlan::Kind::unused) {
    text += "[";
    for (const int64_t size : block.shape) text += (text.back() == '[' ? "" : "x") + std::to_string(size);
    text += "]";
  } else {
    text += std::to_string(block.width);
  }
  if (block.dtype != core::DType::f32) text += "/" + std::string(core::to_string(block.dtype));
  text += kLayouts[static_cast<size_t>(block.layout)];
  if (block.frozen) text += "/frozen";
  if (block.some_ranks) text += "/some_ranks";
  if (block.sparse) text += "/sparse";
  return text;
}

std::string to_text(const StepPlan& step) {
  static constexpr const char* kZeros[] = {"", "i", "z", "m", "k"};
  static constexpr const char* kAfter[] = {"",          "+save",   "+failed_save", "+restart", "+restart_other",
                                           "+rollback", "+rewrap", "+assign",      "+import"};
  std::string text = kZeros[static_cast<size_t>(step.zero)];
  if (step.unsynced > 0) text += std::to_string(step.unsynced) + "n";
  text += std::to_string(step.passes - step.unsynced) + "p";
  if (step.closure) text += "C";
  if (step.clip) text += "c";
  if (step.scale) text += "*";
  if (step.replace) text += "r";
  if (step.retain) text += "2";
  if (step.evaluate) text += "e";
  if (step.nonfinite >= 0) text += "inf" + std::to_string(step.nonfinite);
  if (step.skip) text += "-";
  return text + kAfter[static_cast<size_t>(step.after)];
}

std::string to_text(const OptionsPlan& options) {
  std::string text = std::string(core::to_string(options.fidelity)) + " " + options.policy;
  for (const std::string& compressor : options.compressors) text += " " + compressor;
  text += " budget=" + std::to_string(options.tuning_budget);
  if (options.pacing_mbit > 0) text += " pacing=" + std::to_string(options.pacing_mbit);
  if (options.lossy_after > 0) text += " lossy_after=" + std::to_string(options.lossy_after);
  if (options.strategy_file) text += " strategy_file";
  if (options.late) text += " late";
  return text;
}

std::string to_text(const OptimizerPlan& optimizer) {
  static constexpr const char* kKinds[] = {"sgd", "adam", "adamw", "rmsprop", "adagrad"};
  std::string text = kKinds[static_cast<size_t>(optimizer.kind)];
  if (optimizer.momentum != 0) text += "/momentum";
  if (optimizer.weight_decay != 0) text += "/decay";
  if (optimizer.left_out > 0) text += "/without" + std::to_string(optimizer.left_out);
  if (optimizer.groups) text += "/groups";
  return text;
}

}  // namespace

std::string to_text(const JobPlan& plan) {
  std::string text =
      "FUZZ_SEED=" + std::to_string(plan.seed) + " ranks=" + std::to_string(plan.ranks) + " " + to_text(plan.options);
  if (plan.features.contains("restart_other")) text += " other: " + to_text(plan.other_options);
  if (plan.freeze_at >= 0) text += " freeze_at=" + std::to_string(plan.freeze_at);
  if (plan.threads) text += " threads";
  if (plan.companion) text += " companion";
  text += " " + to_text(plan.optimizer) + " model:";
  for (const BlockPlan& block : plan.model.blocks) text += " " + to_text(block);
  if (plan.model.buffers) text += " buffers";
  if (plan.model.hooks) text += " hooks";
  if (plan.model.penalty) text += " penalty";
  if (plan.fault) {
    text += " " + plan.fault->name + " rank " + std::to_string(plan.fault->rank) + " step " +
            std::to_string(plan.fault->step);
  }
  text += " steps:";
  for (const StepPlan& step : plan.steps) text += " " + to_text(step);
  return text;
}

}  // namespace gradtune::test
