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
  bool decay = false;                  // of the rate, linear, to 0 at the last step
  std::string checkpoint;              // folder; empty: none
  int64_t checkpoint_every = 100;
  std::string data = kFashionMnistFolder;
  bool no_gradtune = false;
};

// Prints help or what is wrong and ends the process when the command line is not to be run.
Flags parse_flags(int argc, char** argv);
