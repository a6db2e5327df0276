// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
#include "tests/hooks/fuzz/job_runner.h"

#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <future>
#include <limits>
#include <set>
#include <sstream>
#include <thread>

#include "tests/hooks/fuzz/random_strategy.h"

namespace gradtune::test {
namespace {

std::vector<torch::Tensor> gradients_of(const std::vector<torch::Tensor>& parameters) {
  std::vector<torch::Tensor> gradients;
  for (const torch::Tensor& parameter : parameters) gradients.push_back(parameter.grad());
  return gradients;
}

}  // namespace

double now_s() { return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(); }

JobRunner::JobRunner(const JobPlan& plan, c10::intrusive_ptr<c10d::ProcessGroup> group, std::string folder)
    : plan_(plan),
      options_(plan.options),
      group_(std::move(group)),
      rank_(group_->getRank()),
      folder_(std::move(folder)),
      lossy_(plan.options.unscaled || plan.other_options.unscaled) {}

void JobRunner::run() {
  begin();
  for (int step = 0; step < steps(); ++step) {
    if (is_wrong("fault_leave", step)) return;
    train(step);
  }
}

void JobRunner::begin() {
  if (!plan_.fault) plain_.emplace(plan_);
  if (is_wrong("fault_model")) plan_.model.blocks[0].width += 3;
  if (is_wrong("fault_format")) {
    BlockPlan::Layout& layout = plan_.model.blocks[0].layout;
    layout = layout == BlockPlan::Layout::transposed ? BlockPlan::Layout::plain : BlockPlan::Layout::transposed;
  }
  model_ = make_model(plan_, initial_values(plan_, rank_));
  if (plan_.fault) model_->add_buffer("cache", is_wrong("fault_buffer") ? 20 : 10);
  if (is_wrong("fault_frozen")) model_->parameters().front().set_requires_grad(false);
  if (is_wrong("fault_parameter")) model_->register_parameter("double", torch::zeros({3}, torch::kDouble));
  parameters_ = trained(*model_);
  inner_ = make_optimizer(plan_.optimizer, parameters_);
  wrap_model();
  if (plain_) check_equal("parameter", parameters_, plain_->parameters());
}

Options JobRunner::options() const {
  Options options{.fidelity = std::string(core::to_string(options_.fidelity)),
                  .tuning_budget = options_.tuning_budget,
                  .quiet = std::getenv("FUZZ_LOUD") == nullptr,
                  .policy = options_.policy,
                  .tuning_share = 1.0,
                  .lossy_after = options_.lossy_after,
                  .host_threads = 1,
                  .seed = static_cast<int64_t>(plan_.seed),
                  .forward_overlap = options_.late};
  if (!options_.compressors.empty()) options.compressors = options_.compressors;
  if (!strategy_.empty()) options.strategy = strategy_;
  if (!plan_.fault) options.timeout = 20;  // with a mistake, the users' default
  if (is_wrong("fault_option")) options.fidelity = "loss";
  if (is_wrong("fault_option_differs")) options.seed = 99;
  return options;
}

void JobRunner::wrap_model() {
  if (options_.strategy_file && strategy_.empty()) {
    strategy_ = file("start.json");
    std::set<std::string> sparse;
    for (size_t b = 0; b < plan_.model.blocks.size(); ++b) {
      if (plan_.model.blocks[b].sparse) sparse.insert("b" + std::to_string(b) + "_weight");
    }
    if (rank_ == 0) write_random_strategy(options_, plan_.ranks, plan_.seed, *model_, strategy_, sparse);
    meet(*group_);
  }
  const std::string pacing = std::to_string(options_.pacing_mbit);
  options_.pacing_mbit > 0 ? setenv("GRADTUNE_PACING_MBIT", pacing.c_str(), 1) : unsetenv("GRADTUNE_PACING_MBIT");
  if (optimizer_) {
    *optimizer_ = wrap(*inner_, *model_, group_, options());
  } else {
    optimizer_.emplace(wrap(*inner_, *model_, group_, options()));
  }
  epoch_ = optimizer_->progress().epoch;
  if (plain_) plain_->share_buffers();
}

void JobRunner::train(int step) {
  if (step == plan_.freeze_at) {
    parameters_[0].set_requires_grad(false);
    if (plain_) plain_->parameters()[0].set_requires_grad(false);
  }
  if (is_wrong("fault_forward_caught", step) || is_wrong("fault_backward_caught", step) ||
      is_wrong("fault_backward_kept", step)) {
    return run_step_and_catch(step);
  }
  if (!plan_.threads) return run_step(step);
  std::async(std::launch::async, [&] { run_step(step); }).get();
}

void JobRunner::run_step(int step) {
  const StepPlan& plan = plan_.steps[static_cast<size_t>(step)];
  if (plan.closure) {
    optimizer_->step([&] { return passes(step); });
  } else {
    if (!is_wrong("fault_no_backward", step)) passes(step);
    if (is_wrong("fault_between", step)) throw std::runtime_error("of the user, before step()");
    if (!plan.skip && !is_wrong("fault_no_step", step)) optimizer_->step();
  }
  if (const int64_t epoch = optimizer_->progress().epoch; epoch != epoch_) {
    ++switches_;
    epoch_ = epoch;
  }
  if (plain_) check_step(plan);
  if (plan.evaluate) evaluate();
  do_after(plan.after);
  if (plan_.fault) make_mistake(step);
}

torch::Tensor JobRunner::passes(int step) {
  const StepPlan& plan = plan_.steps[static_cast<size_t>(step)];
  if (plan.zero == StepPlan::Zero::wrapped) {
    optimizer_->zero_grad();
  } else {
    zero_grad(plan.zero, parameters_, *inner_, *model_);
  }
  if (plain_) plain_->zero_grad(plan.zero);
  torch::Tensor loss;
  const int count = plan.passes + (is_wrong("fault_extra_pass", step) ? 1 : 0);
  for (int index = 0; index < count; ++index) {
    loss = pass(step, index, index >= plan.unsynced && !is_wrong("fault_no_sync", step));
  }
  edit_gradients(plan);
  return loss;
}

torch::Tensor JobRunner::pass(int step, int index, bool synced) {
  const StepPlan& plan = plan_.steps[static_cast<size_t>(step)];
  const bool last = index + 1 == plan.passes;
  const int nonfinite = last ? plan.nonfinite : -1;
  torch::Tensor loss = model_->loss({rank_, step, index}, exception_at(step));
  if (nonfinite == rank_) loss = loss * std::numeric_limits<float>::infinity();
  if (last && plan.retain) {
    const auto guard = optimizer_->no_sync();
    loss.backward({}, /*retain_graph=*/true);
  }
  if (synced) {
    loss.backward();
  } else {
    const auto guard = optimizer_->no_sync();
    loss.backward();
    if (plan.replace) replace_gradients();
  }
  if (!plain_) return loss;
  plain_->pass(step, index, plan);
  if (!synced) return loss;
  if (nonfinite < 0) {
    check_pass();
  } else {
    bool finite = true;
    for (const torch::Tensor& p : parameters_) {
      if (p.grad().defined()) finite = finite && torch::isfinite(p.grad().to_dense()).all().item<bool>();
    }
    if (finite) throw Wrong("an infinite loss on rank " + std::to_string(nonfinite) + " is not seen");
  }
  plain_->take_gradients(parameters_);
  plain_->share_buffers();
  return loss;
}

void JobRunner::check_pass() {
  const std::vector<Average> averages = plain_->averages();
  for (const Average& average : averages) {
    if (average.scale.defined() && !torch::isfinite(average.scale).all().item<bool>()) throw Diverged();
  }
  const bool lossy = options_.fidelity == core::Fidelity::lossy && optimizer_->progress().step >= options_.lossy_after;
  owes_ = owes_ || lossy;
  if (owes_) {
    lossy_.check(averages, parameters_);
  } else {
    check_gradients(averages, parameters_, plan_.ranks, options_.fidelity);
  }
}

void JobRunner::edit_gradients(const StepPlan& step) {
  if (step.clip) torch::nn::utils::clip_grad_norm_(parameters_, 0.5);
  if (step.replace) replace_gradients();
  if (!step.scale) return;
  const torch::NoGradGuard no_grad;
  for (const torch::Tensor& p : parameters_) {
    if (p.grad().defined()) p.grad().mul_(0.5);
  }
}

void JobRunner::replace_gradients() {
  for (const torch::Tensor& p : parameters_) {
    if (p.grad().defined()) p.mutable_grad() = p.grad().clone();
  }
}

// An update is that of the user's optimizer alone, so the same gradients give the same bits.
void JobRunner::check_step(const StepPlan& step) {
  plain_->take_gradients(parameters_);
  if (!step.skip) {
    plain_->step();
    check_equal("parameter", parameters_, plain_->parameters());
  }
  check_equal("buffer", model_->buffers(), plain_->model().buffers());
  check_alike("buffer", model_->buffers(), *group_);
  check_alike("parameter", model_->parameters(), *group_);
  check_alike("gradient", gradients_of(parameters_), *group_);
}

void JobRunner::evaluate() {
  const torch::NoGradGuard no_grad;
  model_->eval();
  model_->loss({rank_, 1000, 0});
  model_->train();
  optimizer_->exclude_step();
}

void JobRunner::do_after(StepPlan::After after) {
  switch (after) {
    case StepPlan::After::nothing: return;
    case StepPlan::After::save: optimizer_->save_checkpoint(file("checkpoint")); return;
    case StepPlan::After::failed_save: expect_failed_save(); return;
    case StepPlan::After::restart_other:
      options_ = plan_.other_options;
      strategy_.clear();
      [[fallthrough]];
    case StepPlan::After::restart: restart(); return;
    case StepPlan::After::rollback: roll_back(); return;
    case StepPlan::After::rewrap: optimizer_.reset(); [[fallthrough]];
    case StepPlan::After::assign:
      owes_ = false;
      wrap_model();
      return;
    case StepPlan::After::import: import_strategy(); return;
  }
}

// Does the same as a process that starts from the files.
void JobRunner::restart() {
  optimizer_->save_checkpoint(file("checkpoint"));
  if (rank_ == 0) {
    torch::save(model_, file("model.pt"));
    torch::save(*inner_, file("inner.pt"));
  }
  meet(*group_);
  optimizer_.reset();
  model_ = make_model(plan_, initial_values(plan_, rank_) + 5);
  torch::load(model_, file("model.pt"));
  parameters_ = trained(*model_);
  inner_ = make_optimizer(plan_.optimizer, parameters_);
  torch::load(*inner_, file("inner.pt"));
  wrap_model();
  optimizer_->load_checkpoint(file("checkpoint"));
  if (plain_) {
    plain_->drop_gradients();
    plain_->parameters()[0].set_requires_grad(true);
  }
  kept_.clear();
  meet(*group_);  // the files may be written again
}

// The first call saves the state to which the second call returns.
void JobRunner::roll_back() {
  std::stringstream mine(kept_), plain(kept_of_plain_);
  if (kept_.empty()) {
    optimizer_->save_checkpoint(file("kept"));
    save_values(mine, *model_, *inner_);
    kept_ = mine.str();
    if (plain_) plain_->save(plain);
    kept_of_plain_ = plain.str();
    return;
  }
  load_values(mine, *model_, *inner_);
  optimizer_->load_checkpoint(file("kept"));
  optimizer_->zero_grad();
  if (plain_) plain_->load(plain);
  kept_.clear();
}

void JobRunner::import_strategy() {
  if (optimizer_->progress().step == 0) return;  // there is none yet
  strategy_ = file("exported.json");
  optimizer_->export_strategy(strategy_);
  meet(*group_);
  optimizer_.reset();
  owes_ = false;
  wrap_model();
}

void JobRunner::expect_failed_save() {
  const std::string no_folder = file("no_folder");
  if (rank_ == 0) std::ofstream(no_folder) << "a file";
  meet(*group_);
  try {
    optimizer_->save_checkpoint(no_folder + "/checkpoint");
  } catch (const std::runtime_error&) {
    return;
  }
  throw Wrong("a checkpoint was saved in a folder that can not be");
}

// --- mistakes of one rank --------------------------------------------------------------------------------------------

bool JobRunner::is_wrong(const char* fault) const {
  return plan_.fault && plan_.fault->name == fault && plan_.fault->rank == rank_;
}

bool JobRunner::is_wrong(const char* fault, int step) const { return is_wrong(fault) && plan_.fault->step == step; }

RandomModelImpl::Between JobRunner::exception_at(int step) const {
  if (is_wrong("fault_exit", step)) _exit(3);
  if (is_wrong("fault_forward", step) || is_wrong("fault_forward_caught", step)) {
    return [](torch::Tensor) -> torch::Tensor { throw std::runtime_error("of the user, in forward"); };
  }
  if (!is_wrong("fault_backward", step) && !is_wrong("fault_backward_caught", step) &&
      !is_wrong("fault_backward_kept", step)) {
    return nullptr;
  }
  return [](torch::Tensor x) {
    // A gradient penalty computes gradients with a graph, which is a part of forward: nothing is accumulated there.
    x.register_hook([](const torch::Tensor&) {
      if (!torch::GradMode::is_enabled()) throw std::runtime_error("of the user, in backward");
    });
    return x;
  };
}

void JobRunner::run_step_and_catch(int step) {
  try {
    run_step(step);
  } catch (const std::exception& error) {
    if (std::string(error.what()).find("of the user") == std::string::npos) throw;
    std::printf("caught error at %.3f: %s\n", now_s(), error.what());
    std::fflush(stdout);
  }
  if (!is_wrong("fault_backward_kept")) return;
  // For example to write a log: the others must not wait for that.
  std::this_thread::sleep_for(std::chrono::seconds(10));
}

void JobRunner::make_mistake(int step) {
  if (is_wrong("fault_buffer_grows", step)) model_->add_buffer("cache", 20);
  if (is_wrong("fault_save", step)) optimizer_->save_checkpoint(file("checkpoint"));
  if (is_wrong("fault_rewrap", step)) wrap_model();
  if (plan_.fault->name == "fault_load" && plan_.fault->step == step) {
    optimizer_->save_checkpoint(file("checkpoint"));
    if (plan_.fault->rank == rank_) optimizer_->load_checkpoint(file("checkpoint"));
  }
}

}  // namespace gradtune::test
