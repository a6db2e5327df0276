// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
#include "hooks/finite_state.h"

#include <torch/optim/adagrad.h>
#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>
#include <torch/optim/rmsprop.h>
#include <torch/optim/sgd.h>

namespace gradtune {
namespace {

void make_finite(torch::Tensor& values) {
  if (values.defined() && values.is_floating_point()) values.nan_to_num_(/*nan=*/0, /*posinf=*/0, /*neginf=*/0);
}

template <typename State>
void make_moments_finite(torch::optim::OptimizerParamState& state) {
  if (auto* const adam = dynamic_cast<State*>(&state)) {
    make_finite(adam->exp_avg());
    make_finite(adam->exp_avg_sq());
    make_finite(adam->max_exp_avg_sq());
  }
}

}  // namespace

void make_state_finite(torch::optim::Optimizer& optimizer) {
  const torch::NoGradGuard no_grad;
  for (auto& [parameter, state] : optimizer.state()) {
    make_moments_finite<torch::optim::AdamParamState>(*state);
    make_moments_finite<torch::optim::AdamWParamState>(*state);
    if (auto* const sgd = dynamic_cast<torch::optim::SGDParamState*>(state.get())) make_finite(sgd->momentum_buffer());
    if (auto* const adagrad = dynamic_cast<torch::optim::AdagradParamState*>(state.get())) make_finite(adagrad->sum());
    if (auto* const rmsprop = dynamic_cast<torch::optim::RMSpropParamState*>(state.get())) {
      make_finite(rmsprop->square_avg());
      make_finite(rmsprop->momentum_buffer());
      make_finite(rmsprop->grad_avg());
    }
  }
}

}  // namespace gradtune
