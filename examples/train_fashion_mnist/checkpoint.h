// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// Runs that end and go on: model and optimizer as one saves them with LibTorch, and beside them what gradtune knows. A
// folder that all ranks see holds step-N, with the files of one checkpoint, and latest, a line that names it.
#pragma once

#include <torch/nn/modules/container/sequential.h>
#include <torch/optim/sgd.h>

#include <cstdint>
#include <string>

#include "gradtune/gradtune.h"

class Checkpoints {
 public:
  // Every so many steps; an empty folder name: none.
  Checkpoints(std::string folder, int64_t every) : folder_(std::move(folder)), every_(every) {}

  // By all ranks, from the latest one, if there is any: model and optimizer, before wrap(), and the steps done; after
  // it what gradtune knows.
  int64_t load(torch::nn::Sequential& model, torch::optim::SGD& sgd) const;
  void load(gradtune::Optimizer& tuned) const;

  // By all ranks, after step(): saves if it is time. `tuned` is null when gradtune is not used. `writes`: this rank
  // saves model and optimizer.
  void save(int64_t steps, torch::nn::Sequential& model, torch::optim::SGD& sgd, gradtune::Optimizer* tuned,
            bool writes) const;

 private:
  std::string latest() const;

  const std::string folder_;
  const int64_t every_;
};
