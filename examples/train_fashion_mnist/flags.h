// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// The command line of the example.
#pragma once

#include "examples/support/job_flags.h"
#include "examples/train_fashion_mnist/data.h"

struct Flags : JobFlags {
  std::string model = "vgg";
  double rate = 0.02, momentum = 0.9;  // of SGD
  bool decay = false;                  // decays the rate linearly to 0 at the last step
  std::string checkpoint;              // folder; empty: no checkpoints
  int64_t checkpoint_every = 100;
  std::string data = kFashionMnistFolder;
  bool no_gradtune = false;
};

// If the command line asks for help or is wrong, prints help or the error and ends the process.
Flags parse_flags(int argc, char** argv);
