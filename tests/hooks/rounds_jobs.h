// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// Jobs that the tests of rounds train.
#pragma once

#include <torch/optim/adamw.h>

#include "gradtune/rounds.h"
#include "tests/hooks/jobs.h"

namespace gradtune::test {

inline torch::optim::AdamW make_inner(torch::nn::Sequential& model) {
  return torch::optim::AdamW(model->parameters(), torch::optim::AdamWOptions(0.01));
}

// A model with an optimizer in rounds.
struct Wrapped {
  Wrapped(const c10::intrusive_ptr<c10d::ProcessGroup>& group, const RoundOptions& of_rounds, const Options& options)
      : optimizer(rounds(inner, *model, group, of_rounds, quiet(options))) {}

  void step(int rank, int64_t step) {
    optimizer.zero_grad();
    loss_of(model, make_data(rank, step)).backward();
    optimizer.step();
  }

  torch::nn::Sequential model = make_mlp(1);
  torch::optim::AdamW inner = make_inner(model);
  RoundsOptimizer optimizer;
};

inline void train(Wrapped& job, int rank, int64_t from, int64_t steps) {
  for (int64_t step = from; step < from + steps; ++step) job.step(rank, step);
}

}  // namespace gradtune::test
