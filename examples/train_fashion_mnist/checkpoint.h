// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// Checkpoints of interrupted runs: model and optimizer as usual in LibTorch, and gradtune's own state beside them. A
// folder that all ranks can access holds step-N, with the files of one checkpoint, and `latest`, a line that names
// it.
#pragma once

#include <torch/nn/modules/container/sequential.h>
#include <torch/optim/sgd.h>

#include <cstdint>
#include <string>

#include "gradtune/gradtune.h"

class Checkpoints {
 public:
  // Saves every `every` steps; an empty folder name means no checkpoints.
  Checkpoints(std::string folder, int64_t every) : folder_(std::move(folder)), every_(every) {}

  // Called by all ranks. Loads the latest checkpoint if there is one: first, before wrap(), model and optimizer, and
  // returns the number of steps done; then, after wrap(), gradtune's state.
  int64_t load(torch::nn::Sequential& model, torch::optim::SGD& sgd) const;
  void load(gradtune::Optimizer& tuned) const;

  // Called by all ranks, after step(): saves if it is time. `tuned` is null if gradtune is not used. `writes`: this
  // rank saves model and optimizer.
  void save(int64_t steps, torch::nn::Sequential& model, torch::optim::SGD& sgd, gradtune::Optimizer* tuned,
            bool writes) const;

 private:
  std::string latest() const;

  const std::string folder_;
  const int64_t every_;
};
