// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
#include "examples/train_fashion_mnist/flags.h"

Flags parse_flags(int argc, char** argv) {
  Flags flags;  // 468 steps of 2 x 64 images are an epoch
  CLI::App app{
      "Trains on Fashion-MNIST, data-parallel, with gradtune. Start one process per rank with torchrun, Slurm, mpirun "
      "or examples/cluster."};
  app.add_option("--model", flags.model,
                 "vgg (8.55 M parameters), resnet (0.31 M), mlp-small (50 k), large-first, large-last or transformer")
      ->capture_default_str();
  add_job_flags(app, flags);
  app.add_option("--rate", flags.rate, "of SGD")->capture_default_str();
  app.add_option("--momentum", flags.momentum, "of SGD")->capture_default_str()->check(CLI::Range(0.0, 1.0));
  app.add_flag("--decay", flags.decay, "the rate falls to 0 by the last step, which takes noise out of the result");
  app.add_option("--checkpoint", flags.checkpoint, "folder to save to, and to go on from what is there");
  app.add_option("--checkpoint-every", flags.checkpoint_every, "steps")
      ->capture_default_str()
      ->check(CLI::Range(1, 1 << 30));
  app.add_option("--data", flags.data, "folder of the four files")->capture_default_str();
  app.add_flag("--no-gradtune", flags.no_gradtune, "plain merged all-reduce after backward, to compare");
  parse_or_exit(app, argc, argv);
  return flags;
}
