// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// Small training jobs for tests with several ranks.
#pragma once

#include <torch/torch.h>

#include <cstdint>
#include <functional>
#include <string>

#include "gradtune/gradtune.h"
#include "tests/hooks/ranks.h"

namespace gradtune::test {

// A process group between the processes of run_ranks. The time limit is for machines that stall: one of four
// processes that started together was seen to come 20 s later, because it read LibTorch from a cold disk.
inline c10::intrusive_ptr<c10d::ProcessGroup> make_group(double timeout_s = 50) {
  return init_process_group(kSlowness * timeout_s);
}

inline torch::nn::Sequential make_mlp(int64_t seed, int64_t width = 64) {
  torch::manual_seed(seed);
  return torch::nn::Sequential(torch::nn::Linear(20, width), torch::nn::ReLU(), torch::nn::Linear(width, width),
                               torch::nn::ReLU(), torch::nn::Linear(width, 5));
}

struct Data {
  torch::Tensor inputs, targets;
};

// The batch of a rank in a step: every rank can also make those of the others, to know the expected average.
inline Data make_data(int rank, int64_t step, int64_t batch = 8, torch::ScalarType type = torch::kFloat) {
  torch::manual_seed(1000 * step + rank);
  return {torch::randn({batch, 20}).to(type), torch::randint(0, 5, {batch})};
}

inline torch::Tensor loss_of(torch::nn::Sequential& model, const Data& data) {
  return torch::nn::functional::cross_entropy(model->forward(data.inputs), data.targets);
}

// Sets a time limit for tests, unless a test has its own.
inline Options quiet(Options options = {}) {
  options.quiet = true;
  if (!options.timeout) options.timeout = 20;
  if (kSlowness != 1) options.timeout = kSlowness * *options.timeout;
  return options;
}

inline std::string message_of(const std::function<void()>& body) {
  try {
    body();
  } catch (const std::exception& error) {
    return error.what();
  }
  return "no error";
}

// Largest absolute difference between this rank's tensor and rank 0's.
inline double difference_from_rank0(const torch::Tensor& tensor, c10d::ProcessGroup& group) {
  std::vector<torch::Tensor> first{tensor.detach().clone().contiguous()};
  group.broadcast(first)->wait();
  return tensor.numel() == 0
             ? 0
             : (first[0].to(torch::kDouble) - tensor.detach().to(torch::kDouble)).abs().max().item<double>();
}

// The number of steps depends on the machine. Trains until rank 0's tuner has decided, which is checked now and
// then, and some steps longer; no more than most_steps.
inline void train_until_decided(Optimizer& optimizer, c10d::ProcessGroup& group, const std::function<void(int)>& train,
                                int most_steps = 2000) {
  constexpr int kEvery = 20;
  bool decided = false;
  for (int step = 0; step < most_steps && !decided; ++step) {
    train(step);
    if (step % kEvery != 0) continue;
    std::vector<torch::Tensor> flag{torch::tensor({optimizer.result().decided ? 1 : 0})};
    group.broadcast(flag)->wait();
    decided = flag[0].item<int>() == 1;
  }
  for (int step = 0; step < kEvery; ++step) train(step);
}

}  // namespace gradtune::test
