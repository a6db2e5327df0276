// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// Trains on Fashion-MNIST with gradtune, or without it for comparison. train() shows the additions to a LibTorch
// program: init_process_group and wrap; the three calls of a step stay as usual.
#include <torch/torch.h>

#include <chrono>
#include <cstdio>
#include <optional>

#include "examples/support/device.h"
#include "examples/support/record.h"
#include "examples/train_fashion_mnist/checkpoint.h"
#include "examples/train_fashion_mnist/data.h"
#include "examples/train_fashion_mnist/flags.h"
#include "examples/train_fashion_mnist/models.h"
#include "gradtune/gradtune.h"

namespace {

// The usual method without gradtune: average all gradients in one message after backward.
void merged_all_reduce(const std::vector<torch::Tensor>& parameters, c10d::ProcessGroup& group) {
  const torch::NoGradGuard no_grad;
  std::vector<torch::Tensor> gradients;
  for (const torch::Tensor& parameter : parameters) gradients.push_back(parameter.grad().flatten());
  std::vector<torch::Tensor> flat{torch::cat(gradients).div_(group.getSize())};
  group.allreduce(flat)->wait();
  int64_t at = 0;
  for (const torch::Tensor& parameter : parameters) {
    parameter.grad().copy_(flat[0].slice(0, at, at + parameter.numel()).view_as(parameter));
    at += parameter.numel();
  }
}

Batch on(torch::Device device, const Batch& batch) { return {batch.images.to(device), batch.labels.to(device)}; }

double accuracy_percent(torch::nn::Sequential& model, const Dataset& test, torch::Device device) {
  const torch::NoGradGuard no_grad;
  model->eval();
  int64_t right = 0;
  const int64_t n = test.images.size(0);
  for (int64_t at = 0; at < n; at += 500) {
    const Batch batch = on(device, make_batch(test, torch::arange(at, std::min(n, at + 500))));
    right += model->forward(batch.images).argmax(1).eq(batch.labels).sum().item<int64_t>();
  }
  model->train();
  return 100.0 * static_cast<double>(right) / static_cast<double>(n);
}

void set_rate(torch::optim::SGD& sgd, double rate) {
  for (auto& group : sgd.param_groups()) static_cast<torch::optim::SGDOptions&>(group.options()).lr(rate);
}

void train(const Flags& flags) {
  const torch::Device device = open_device(flags.device);
  const auto group = gradtune::init_process_group();
  const bool speaks = group->getRank() == 0;
  const Dataset data = load_fashion_mnist(flags.data, "train");
  Batches batches(data, flags.batch, group->getRank(), group->getSize(), flags.seed);

  torch::manual_seed(flags.seed);
  torch::nn::Sequential model = make_model(flags.model);
  model->to(device);
  torch::optim::SGD sgd(model->parameters(), torch::optim::SGDOptions(flags.rate).momentum(flags.momentum));
  const Checkpoints checkpoints(flags.checkpoint, flags.checkpoint_every);
  const int64_t first_step = checkpoints.load(model, sgd);
  batches.skip(first_step);

  std::optional<gradtune::Optimizer> optimizer;
  if (!flags.no_gradtune) optimizer = gradtune::wrap(sgd, *model, group, options_of(flags));

  gradtune::Optimizer* const tuned = optimizer ? &*optimizer : nullptr;
  if (tuned != nullptr) checkpoints.load(*tuned);

  Record record(group->getSize());
  for (int64_t step = first_step; step < flags.steps; ++step) {
    if (flags.decay) set_rate(sgd, flags.rate * (1 - static_cast<double>(step) / static_cast<double>(flags.steps)));
    const Batch batch = on(device, batches.next());
    optimizer ? optimizer->zero_grad() : sgd.zero_grad();
    const torch::Tensor loss = torch::nn::functional::cross_entropy(model->forward(batch.images), batch.labels);
    loss.backward();
    if (optimizer) {
      optimizer->step();
    } else {
      merged_all_reduce(model->parameters(), *group);
      sgd.step();
    }
    record.add_step(loss.item<double>(), tuned);
    if (speaks && (step + 1) % 50 == 0)
      std::printf("step %ld: loss %.4f\n", static_cast<long>(step + 1), record.mean_loss(50));
    checkpoints.save(step + 1, model, sgd, tuned, speaks);
  }

  if (!speaks) return;
  if (!flags.no_eval) {
    record.accuracy = accuracy_percent(model, load_fashion_mnist(flags.data, "t10k"), device);
    std::printf("accuracy %.2f %% after %ld steps\n", *record.accuracy, static_cast<long>(flags.steps));
  }
  if (optimizer) std::fputs(record.where_time_went(*optimizer).c_str(), stdout);
  if (optimizer && !flags.export_file.empty()) optimizer->export_strategy(flags.export_file);
  if (!flags.report.empty()) record.write(flags.report, tuned);
}

}  // namespace

int main(int argc, char** argv) {
  const Flags flags = parse_flags(argc, argv);
  return run_example("train_fashion_mnist", [&] { train(flags); });
}
