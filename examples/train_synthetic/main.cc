// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// Trains a model of common size on random data with gradtune, to measure step times.
#include <torch/torch.h>

#include <cstdio>

#include "examples/support/device.h"
#include "examples/support/job_flags.h"
#include "examples/support/record.h"
#include "examples/train_synthetic/models.h"

namespace {

struct Flags : JobFlags {
  std::string model = "gpt2";
  int64_t length = 512;
};

Flags parse_flags(int argc, char** argv) {
  Flags flags;
  flags.batch = 4;
  flags.steps = 300;
  CLI::App app{
      "Trains a model of usual size on random data, data-parallel, with gradtune. Start one process per rank with "
      "torchrun, Slurm, mpirun or examples/cluster."};
  app.add_option("--model", flags.model, "gpt2 (163 M parameters), resnet50 (25.6 M) or tiny (0.3 M)")
      ->capture_default_str();
  app.add_option("--length", flags.length, "symbols of a piece of text")->capture_default_str();
  add_job_flags(app, flags);
  parse_or_exit(app, argc, argv);
  return flags;
}

void train(const Flags& flags) {
  const torch::Device device = open_device(flags.device);
  const auto group = gradtune::init_process_group();
  const bool speaks = group->getRank() == 0;
  torch::manual_seed(flags.seed);
  SyntheticJob job = make_job(flags.model, flags.length, device);
  torch::manual_seed(flags.seed + 1 + group->getRank());  // of the data
  torch::optim::AdamW adam(job.model->parameters(), torch::optim::AdamWOptions(1e-4));
  gradtune::Optimizer optimizer = gradtune::wrap(adam, *job.model, group, options_of(flags));

  Record record(group->getSize());
  for (int64_t step = 0; step < flags.steps; ++step) {
    optimizer.zero_grad();
    const torch::Tensor loss = job.loss(job.model, flags.batch);
    loss.backward();
    optimizer.step();
    record.add_step(loss.item<double>(), &optimizer);
    if (speaks && (step + 1) % 50 == 0) std::printf("step %ld\n", static_cast<long>(step + 1));
  }
  if (!speaks) return;
  finish(flags, record, optimizer);
}

}  // namespace

int main(int argc, char** argv) {
  const Flags flags = parse_flags(argc, argv);
  return run_example("train_synthetic", [&] { train(flags); });
}
