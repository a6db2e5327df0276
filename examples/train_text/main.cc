// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// Trains a small transformer or LSTM to predict the next byte of a text, with AdamW and gradtune.
#include <torch/torch.h>

#include <algorithm>
#include <cmath>
#include <cstdio>

#include "examples/support/device.h"
#include "examples/support/job_flags.h"
#include "examples/support/record.h"
#include "examples/train_text/models.h"
#include "examples/train_text/text.h"

namespace {

struct Flags : JobFlags {
  std::string model = "transformer";
  double rate = 2e-3;
  std::string text;
};

Flags parse_flags(int argc, char** argv) {
  Flags flags;
  flags.batch = 16;
  flags.steps = 400;
  CLI::App app{
      "Trains a small model on the bytes of a text, data-parallel, with gradtune. Start one process per rank with "
      "torchrun, Slurm, mpirun or examples/cluster."};
  app.add_option("--model", flags.model, "transformer (0.43 M parameters) or lstm (0.37 M)")->capture_default_str();
  add_job_flags(app, flags);
  app.add_option("--rate", flags.rate, "of AdamW, after 50 steps of warm-up")->capture_default_str();
  app.add_option("--text", flags.text, "file; without it the King James Bible of Debian's package bible-kjv");
  parse_or_exit(app, argc, argv);
  return flags;
}

TextBatch on(torch::Device device, const TextBatch& batch) {
  return {batch.inputs.to(device), batch.targets.to(device)};
}

torch::Tensor loss_of(torch::nn::Sequential& model, const TextBatch& batch) {
  const torch::Tensor scores = model->forward(batch.inputs);
  return torch::nn::functional::cross_entropy(scores.view({-1, kSymbols}), batch.targets.view({-1}));
}

// Computed over the first 128 Ki bytes of the validation text.
double perplexity_of(torch::nn::Sequential& model, const torch::Tensor& text, torch::Device device) {
  const torch::NoGradGuard no_grad;
  model->eval();
  double sum = 0;
  int64_t batches = 0;
  const int64_t bytes = std::min<int64_t>(text.size(0) - 1, 1 << 17);
  for (int64_t begin = 0; begin + 64 * kLength <= bytes; begin += 64 * kLength, ++batches) {
    const torch::Tensor begins = torch::arange(begin, begin + 64 * kLength, kLength);
    sum += loss_of(model, on(device, piece(text, begins, kLength))).item<double>();
  }
  model->train();
  return std::exp(sum / static_cast<double>(std::max<int64_t>(batches, 1)));
}

void train(const Flags& flags) {
  const torch::Device device = open_device(flags.device);
  const auto group = gradtune::init_process_group();
  const bool speaks = group->getRank() == 0;
  const Text text = load_text(flags.text);
  TextBatches batches(text.train, flags.batch, kLength, group->getRank(), flags.seed);

  torch::manual_seed(flags.seed);
  torch::nn::Sequential model = make_model(flags.model);
  model->to(device);
  torch::optim::AdamW adam(model->parameters(), torch::optim::AdamWOptions(flags.rate).weight_decay(0.01));
  gradtune::Optimizer optimizer = gradtune::wrap(adam, *model, group, options_of(flags));

  Record record(group->getSize());
  for (int64_t step = 0; step < flags.steps; ++step) {
    constexpr int64_t kWarmUp = 50;
    for (auto& parameters : adam.param_groups()) {
      const double share = static_cast<double>(std::min(step + 1, kWarmUp)) / kWarmUp;
      static_cast<torch::optim::AdamWOptions&>(parameters.options()).lr(flags.rate * share);
    }
    optimizer.zero_grad();
    const torch::Tensor loss = loss_of(model, on(device, batches.next()));
    loss.backward();
    optimizer.step();
    record.add_step(loss.item<double>(), &optimizer);
    if (speaks && (step + 1) % 50 == 0)
      std::printf("step %ld: loss %.4f\n", static_cast<long>(step + 1), record.mean_loss(50));
  }

  if (!speaks) return;
  if (!flags.no_eval) {
    record.perplexity = perplexity_of(model, text.validation, device);
    std::printf("perplexity %.3f after %ld steps\n", *record.perplexity, static_cast<long>(flags.steps));
  }
  finish(flags, record, optimizer);
}

}  // namespace

int main(int argc, char** argv) {
  const Flags flags = parse_flags(argc, argv);
  return run_example("train_text", [&] { train(flags); });
}
