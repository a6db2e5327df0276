// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
#include "examples/train_fashion_mnist/flags.h"

#include <CLI/CLI.hpp>
#include <cstdlib>

Flags parse_flags(int argc, char** argv) {
  Flags flags;
  CLI::App app{
      "Trains on Fashion-MNIST, data-parallel, with gradtune. Start one process per rank with torchrun, Slurm, mpirun "
      "or examples/cluster."};
  app.add_option("--model", flags.model, "vgg (8.55 M parameters) or mlp-small (50 k)")->capture_default_str();
  app.add_option("--batch", flags.batch, "images per rank and step")
      ->capture_default_str()
      ->check(CLI::Range(1, 60000));
  app.add_option("--steps", flags.steps)->capture_default_str()->check(CLI::Range(1, 1 << 30));
  app.add_option("--seed", flags.seed, "of the model's initial values and the order of the data")
      ->capture_default_str();
  app.add_option("--fidelity", flags.fidelity, "exact, half or lossy");
  app.add_option("--compressors", flags.compressors, "allow-list, such as topk:0.01")->delimiter(',');
  app.add_option("--policy", flags.policy, "auto, mergecomp, fixed or exhaustive");
  app.add_option("--strategy", flags.strategy, "file to start from");
  app.add_option("--export", flags.export_file, "file for the strategy in force at the end");
  app.add_option("--journal", flags.journal, "file for what the tuner saw and decided");
  app.add_option("--report", flags.report, "file for times, losses and accuracy");
  app.add_option("--checkpoint", flags.checkpoint, "folder to save to, and to go on from what is there");
  app.add_option("--checkpoint-every", flags.checkpoint_every, "steps")
      ->capture_default_str()
      ->check(CLI::Range(1, 1 << 30));
  app.add_option("--data", flags.data, "folder of the four files")->capture_default_str();
  app.add_flag("--no-gradtune", flags.no_gradtune, "plain merged all-reduce after backward, to compare");
  app.add_flag("--no-eval", flags.no_eval, "do not measure accuracy at the end");
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    std::exit(app.exit(error));
  }
  return flags;
}
