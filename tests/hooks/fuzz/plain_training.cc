// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
#include "tests/hooks/fuzz/plain_training.h"

#include <istream>
#include <limits>
#include <ostream>
#include <utility>

namespace gradtune::test {

PlainTraining::PlainTraining(const JobPlan& plan)
    : seed_(plan.seed),
      model_(make_model(plan, initial_values(plan, 0))),
      parameters_(trained(*model_)),
      buffers_(model_->buffers()),
      optimizer_(make_optimizer(plan.optimizer, parameters_)),
      replicas_(static_cast<size_t>(plan.ranks)) {
  for (Replica& replica : replicas_) {
    replica.gradients.resize(parameters_.size());
    for (const torch::Tensor& buffer : buffers_) replica.buffers.push_back(buffer.clone());
  }
}

void PlainTraining::enter(Replica& replica) {
  const torch::NoGradGuard no_grad;
  for (size_t p = 0; p < parameters_.size(); ++p) {
    parameters_[p].mutable_grad() = std::exchange(replica.gradients[p], torch::Tensor());
  }
  for (size_t b = 0; b < buffers_.size(); ++b) buffers_[b].copy_(replica.buffers[b]);
}

void PlainTraining::leave(Replica& replica) {
  const torch::NoGradGuard no_grad;
  for (size_t p = 0; p < parameters_.size(); ++p) {
    replica.gradients[p] = std::exchange(parameters_[p].mutable_grad(), torch::Tensor());
  }
  for (size_t b = 0; b < buffers_.size(); ++b) replica.buffers[b].copy_(buffers_[b]);
}

void PlainTraining::pass(int step, int index, const StepPlan& plan) {
  const bool last = index + 1 == plan.passes;
  for (int rank = 0; rank < static_cast<int>(replicas_.size()); ++rank) {
    enter(replicas_[static_cast<size_t>(rank)]);
    torch::Tensor loss = model_->loss({rank, step, index});
    if (last && rank == plan.nonfinite) loss = loss * std::numeric_limits<float>::infinity();
    if (last && plan.retain) loss.backward({}, /*retain_graph=*/true);
    loss.backward();
    leave(replicas_[static_cast<size_t>(rank)]);
  }
}

std::vector<Average> PlainTraining::averages() const {
  std::vector<Average> averages(parameters_.size());
  const auto ranks = static_cast<double>(replicas_.size());
  for (size_t p = 0; p < parameters_.size(); ++p) {
    for (const Replica& replica : replicas_) {
      if (!replica.gradients[p].defined()) continue;
      const torch::Tensor gradient = replica.gradients[p].to_dense().to(torch::kDouble) / ranks;
      Average& average = averages[p];
      average.value = average.value.defined() ? average.value + gradient : gradient;
      average.scale = average.scale.defined() ? average.scale + gradient.abs() : gradient.abs();
    }
  }
  return averages;
}

void PlainTraining::take_gradients(const std::vector<torch::Tensor>& of) {
  for (Replica& replica : replicas_) {
    for (size_t p = 0; p < parameters_.size(); ++p) {
      const torch::Tensor& gradient = of[p].grad();
      replica.gradients[p] = gradient.defined() ? gradient.clone() : torch::Tensor();
    }
  }
}

void PlainTraining::share_buffers() {
  for (Replica& replica : replicas_) {
    for (size_t b = 0; b < buffers_.size(); ++b) {
      buffers_[b].copy_(replicas_[0].buffers[b]);
      replica.buffers[b].copy_(buffers_[b]);
    }
  }
}

void PlainTraining::zero_grad(StepPlan::Zero how) {
  for (Replica& replica : replicas_) {
    enter(replica);
    test::zero_grad(how, parameters_, *optimizer_, *model_);
    leave(replica);
  }
}

void PlainTraining::step() {
  enter(replicas_[0]);
  optimizer_->step();
  leave(replicas_[0]);
}

void PlainTraining::save(std::ostream& stream) {
  share_buffers();
  save_values(stream, *model_, *optimizer_);
}

void PlainTraining::load(std::istream& stream) {
  load_values(stream, *model_, *optimizer_);
  const torch::NoGradGuard no_grad;
  for (Replica& replica : replicas_) {
    for (size_t b = 0; b < buffers_.size(); ++b) replica.buffers[b].copy_(buffers_[b]);
  }
  drop_gradients();
}

namespace {

std::vector<torch::Tensor> values_of(const torch::nn::Module& module) {
  std::vector<torch::Tensor> values = module.parameters();
  for (const torch::Tensor& buffer : module.buffers()) values.push_back(buffer);
  return values;
}

}  // namespace

void save_values(std::ostream& stream, const torch::nn::Module& module, torch::optim::Optimizer& optimizer) {
  torch::serialize::OutputArchive archive, state;
  const std::vector<torch::Tensor> values = values_of(module);
  for (size_t v = 0; v < values.size(); ++v) archive.write(std::to_string(v), values[v].detach().clone());
  optimizer.save(state);
  archive.write("optimizer", state);
  archive.save_to(stream);
}

void load_values(std::istream& stream, const torch::nn::Module& module, torch::optim::Optimizer& optimizer) {
  const torch::NoGradGuard no_grad;
  torch::serialize::InputArchive archive, state;
  archive.load_from(stream);
  const std::vector<torch::Tensor> values = values_of(module);
  for (size_t v = 0; v < values.size(); ++v) {
    torch::Tensor value;
    archive.read(std::to_string(v), value);
    values[v].copy_(value);
  }
  archive.read("optimizer", state);
  optimizer.load(state);
}

void zero_grad(StepPlan::Zero how, const std::vector<torch::Tensor>& parameters, torch::optim::Optimizer& optimizer,
               torch::nn::Module& module) {
  switch (how) {
    case StepPlan::Zero::wrapped:
      for (const torch::Tensor& parameter : parameters) parameter.mutable_grad().reset();
      return;
    case StepPlan::Zero::inner: optimizer.zero_grad(); return;
    case StepPlan::Zero::zeros: optimizer.zero_grad(/*set_to_none=*/false); return;
    case StepPlan::Zero::module: module.zero_grad(); return;
    case StepPlan::Zero::never: return;
  }
}

}  // namespace gradtune::test
