// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
#include <gradtune/gradtune.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/sgd.h>

#include <cstdlib>
#include <iostream>

// Without a launcher's variables this is a group of one, in which gradtune must not change the training.
int main() {
  torch::manual_seed(1);
  torch::nn::Linear model(8, 3);
  const torch::Tensor input = torch::randn({16, 8});
  const torch::Tensor before = model->weight.detach().clone();

  torch::optim::SGD sgd(model->parameters(), 0.1);
  auto group = gradtune::init_process_group();
  auto optimizer = gradtune::wrap(sgd, *model, group, {.quiet = true});
  optimizer.zero_grad();
  model->forward(input).sum().backward();
  const torch::Tensor gradient = input.sum(0).expand({3, 8});
  optimizer.step();

  if (!torch::allclose(model->weight, before - 0.1 * gradient, 1e-5, 1e-5)) {
    std::cerr << "the step was not SGD's\n";
    return EXIT_FAILURE;
  }
  std::cout << "one step with gradtune\n";
  return EXIT_SUCCESS;
}
