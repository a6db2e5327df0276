// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
#include "tests/hooks/overlap/overlap_run.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <stdexcept>
#include <utility>

namespace gradtune::test {
namespace {

// Reads as torch::save does: no operator of LibTorch shows it.
std::vector<torch::Tensor> raw_copies(const std::vector<torch::Tensor>& parameters) {
  std::vector<torch::Tensor> copies;
  for (const torch::Tensor& p : parameters) {
    copies.push_back(torch::from_blob(p.data_ptr(), p.sizes(), p.strides(), p.scalar_type()).clone());
  }
  return copies;
}

std::vector<torch::Tensor> copies(const std::vector<torch::Tensor>& parameters) {
  std::vector<torch::Tensor> copies;
  for (const torch::Tensor& p : parameters) copies.push_back(p.detach().clone());
  return copies;
}

class Run {
 public:
  Run(const OverlapPlan& plan, int rank, OverlapModel& model, torch::optim::Optimizer& optimizer,
      OverlapTrainer& trainer)
      : plan_(plan),
        rank_(rank),
        model_(model),
        optimizer_(optimizer),
        trainer_(trainer),
        parameters_(model.parameters()) {}

  Moments run() {
    for (int step = 0; step < static_cast<int>(plan_.steps.size()); ++step) one_step(step);
    trainer_.synchronize();
    moments_.push_back(raw_copies(parameters_));
    return std::move(moments_);
  }

 private:
  void one_step(int number) {
    const OverlapStep& step = plan_.steps[static_cast<size_t>(number)];
    before_forward(number, step);
    const auto passes = [&] {
      zero_grad(step.zero);
      for (int index = 0; index < step.passes; ++index) trainer_.pass(number, index, index + 1 == step.passes);
      before_update(step);
    };
    if (step.closure) {
      trainer_.step(passes);
    } else {
      passes();
      if (!step.skip) trainer_.step(nullptr);
    }
    if (step.again) trainer_.step(nullptr);
    if (step.read) moments_.push_back(copies(parameters_));
    if (step.switches) trainer_.switch_strategy(number);
    if (!step.checkpoint) return;
    trainer_.zero_grad();  // a checkpoint does not contain averages that no step used
    trainer_.checkpoint();
    moments_.push_back(raw_copies(parameters_));
  }

  void before_forward(int number, const OverlapStep& step) {
    if (step.change_rate) {
      for (auto& group : optimizer_.param_groups()) group.options().set_lr(group.options().get_lr() * 0.9);
    }
    if (step.use_gradients) {
      std::vector<torch::Tensor>& moment = moments_.emplace_back();
      for (const torch::Tensor& p : parameters_) {
        if (p.grad().defined()) moment.push_back(2 * p.grad());
      }
    }
    if (step.synchronize) {
      trainer_.synchronize();
      moments_.push_back(raw_copies(parameters_));
    }
    if (step.edit) {
      const torch::NoGradGuard no_grad;
      parameters_[static_cast<size_t>(number) % parameters_.size()].mul_(0.75);
    }
    if (step.interrupt) {
      EXPECT_THROW(model_.loss({rank_, 5000 + number, 0}, /*throws=*/true), std::runtime_error);
    }
    if (step.evaluate == OverlapStep::Evaluate::no_grad) {
      const torch::NoGradGuard no_grad;
      moments_.push_back({model_.loss({0, 6000 + number, 0})});
    } else if (step.evaluate == OverlapStep::Evaluate::inference) {
      const c10::InferenceMode inference;
      moments_.push_back({model_.loss({0, 6000 + number, 0}).clone()});
    }
  }

  void zero_grad(OverlapStep::Zero how) {
    switch (how) {
      case OverlapStep::Zero::wrapped: trainer_.zero_grad(); break;
      case OverlapStep::Zero::module: model_.zero_grad(); break;
      case OverlapStep::Zero::zeros: optimizer_.zero_grad(/*set_to_none=*/false); break;
      case OverlapStep::Zero::never: break;
    }
  }

  void before_update(const OverlapStep& step) {
    if (step.clip) torch::nn::utils::clip_grad_norm_(parameters_, 0.1);
    if (step.replace) parameters_.front().mutable_grad() = torch::full_like(parameters_.front(), 0.125);
  }

  const OverlapPlan& plan_;
  const int rank_;
  OverlapModel& model_;
  torch::optim::Optimizer& optimizer_;
  OverlapTrainer& trainer_;
  const std::vector<torch::Tensor> parameters_;
  Moments moments_;
};

class PlainTrainer final : public OverlapTrainer {
 public:
  PlainTrainer(OverlapModel& model, torch::optim::Optimizer& optimizer, int ranks)
      : model_(model),
        optimizer_(optimizer),
        parameters_(model.parameters()),
        gradients_(static_cast<size_t>(ranks), std::vector<torch::Tensor>(parameters_.size())) {}

  void pass(int step, int index, bool synced) override {
    for (size_t r = 0; r < gradients_.size(); ++r) {
      for (size_t p = 0; p < parameters_.size(); ++p) {
        if (!are_own_)
          gradients_[r][p] = parameters_[p].grad().defined() ? parameters_[p].grad().clone() : torch::Tensor();
      }
    }
    for (size_t r = 0; r < gradients_.size(); ++r) {
      exchange(r);
      model_.loss({static_cast<int>(r), step, index}).backward();
      exchange(r);
    }
    are_own_ = !synced;
    if (synced) average();
  }
  void zero_grad() override {
    for (torch::Tensor& p : parameters_) p.mutable_grad().reset();
  }
  void step(const std::function<void()>& closure) override {
    if (closure) closure();
    optimizer_.step();
  }

 private:
  void exchange(size_t rank) {
    for (size_t p = 0; p < parameters_.size(); ++p) std::swap(parameters_[p].mutable_grad(), gradients_[rank][p]);
  }
  void average() {
    const torch::NoGradGuard no_grad;
    for (size_t p = 0; p < parameters_.size(); ++p) {
      torch::Tensor sum;
      for (const std::vector<torch::Tensor>& own : gradients_) {
        if (!own[p].defined()) continue;
        const torch::Tensor share = own[p] * (1.0F / static_cast<float>(gradients_.size()));
        sum = sum.defined() ? sum + share : share;
      }
      parameters_[p].mutable_grad() = sum;
    }
  }

  OverlapModel& model_;
  torch::optim::Optimizer& optimizer_;
  std::vector<torch::Tensor> parameters_;
  std::vector<std::vector<torch::Tensor>> gradients_;  // of each rank
  bool are_own_ = false;                               // accumulated by each rank, not averaged yet
};

}  // namespace

Moments run_overlap(const OverlapPlan& plan, int rank, OverlapModel& model, torch::optim::Optimizer& optimizer,
                    OverlapTrainer& trainer) {
  return Run(plan, rank, model, optimizer, trainer).run();
}

Moments run_plain(const OverlapPlan& plan, int ranks) {
  const auto model = make_overlap_model(plan);
  const auto optimizer = make_overlap_optimizer(plan, model->parameters());
  PlainTrainer trainer(*model, *optimizer, ranks);
  return run_overlap(plan, 0, *model, *optimizer, trainer);
}

std::string difference(const Moments& found, const Moments& wanted) {
  for (size_t m = 0; m < std::max(found.size(), wanted.size()); ++m) {
    const std::string where = "moment " + std::to_string(m) + " of " + std::to_string(wanted.size());
    if (m >= found.size() || m >= wanted.size() || found[m].size() != wanted[m].size()) return where + " has others";
    for (size_t t = 0; t < found[m].size(); ++t) {
      if (torch::equal(found[m][t], wanted[m][t])) continue;
      return where + ", tensor " + std::to_string(t) + " differs by up to " +
             c10::str((found[m][t] - wanted[m][t]).abs().max().item<double>());
    }
  }
  return {};
}

}  // namespace gradtune::test
