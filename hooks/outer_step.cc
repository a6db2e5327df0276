// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
#include "hooks/outer_step.h"

#include <torch/utils.h>

#include <algorithm>
#include <string>
#include <utility>

#include "hooks/gradients.h"
#include "hooks/refusal.h"

namespace gradtune {
namespace {

torch::ScalarType dtype_of_anchor(const torch::Tensor& parameter) {
  return parameter.scalar_type() == torch::kDouble ? torch::kDouble : torch::kFloat;
}

// Waits once for the tensors' device.
bool are_finite(const std::vector<torch::Tensor>& changes) {
  std::vector<torch::Tensor> each;
  for (const torch::Tensor& change : changes) each.push_back(change.isfinite().all());
  return each.empty() || torch::stack(each).all().item<bool>();
}

}  // namespace

OuterStep::OuterStep(std::vector<torch::Tensor> parameters, const Rates& rates)
    : parameters_(std::move(parameters)), rates_(rates) {
  const torch::NoGradGuard no_grad;
  for (const torch::Tensor& parameter : parameters_) {
    anchors_.push_back(parameter.detach().to(dtype_of_anchor(parameter), /*non_blocking=*/false, /*copy=*/true));
    momenta_.push_back(torch::zeros_like(anchors_.back()));
  }
}

torch::Tensor OuterStep::change(size_t parameter) const {
  const torch::NoGradGuard no_grad;
  const torch::Tensor& current = parameters_[parameter];
  torch::Tensor change = torch::empty_strided(current.sizes(), gradient_strides(current), current.options());
  change.copy_(anchors_[parameter] - current);
  return change;
}

void OuterStep::keep_going() {
  const torch::NoGradGuard no_grad;
  for (const torch::Tensor& parameter : parameters_) exchanged_.push_back(parameter.detach().clone());
}

OuterStep::Outcome OuterStep::step(const std::vector<torch::Tensor>& mean_changes, bool is_late) {
  const torch::NoGradGuard no_grad;
  if (!are_finite(mean_changes)) {
    const bool is_here = !are_finite(exchanged_.empty() ? parameters_ : exchanged_);
    go_back();
    return is_here ? Outcome::lost_here : Outcome::lost;
  }
  for (size_t p = 0; p < parameters_.size(); ++p) {
    const torch::Tensor change = mean_changes[p].to(anchors_[p].scalar_type());
    if (!is_late) momenta_[p].mul_(rates_.momentum);
    momenta_[p].add_(change);
    anchors_[p].sub_(change.add(is_late ? change : momenta_[p], rates_.momentum), rates_.lr);
    parameters_[p].copy_(exchanged_.empty() ? anchors_[p] : anchors_[p] + (parameters_[p] - exchanged_[p]));
  }
  exchanged_.clear();
  return Outcome::stepped;
}

void OuterStep::go_back() {
  const torch::NoGradGuard no_grad;
  for (size_t p = 0; p < parameters_.size(); ++p) parameters_[p].copy_(anchors_[p]);
  exchanged_.clear();
}

void check_momenta(std::span<const torch::Tensor> momenta, const std::vector<torch::Tensor>& parameters) {
  if (momenta.size() != parameters.size()) {
    refuse("the outer momentum has " + std::to_string(momenta.size()) + " tensors; allowed is one for each of the " +
           std::to_string(parameters.size()) + " trained parameters");
  }
  for (size_t p = 0; p < momenta.size(); ++p) {
    if (momenta[p].sizes() != parameters[p].sizes()) {
      refuse("the outer momentum of trained parameter " + std::to_string(p) +
             " has another shape than the parameter; allowed is the state of an equal model");
    }
  }
}

void OuterStep::restore(std::span<const torch::Tensor> momenta) {
  const torch::NoGradGuard no_grad;
  check_momenta(momenta, parameters_);
  for (size_t p = 0; p < momenta.size(); ++p) {
    momenta_[p].copy_(momenta[p]);
    anchors_[p].copy_(parameters_[p]);
  }
}

}  // namespace gradtune
