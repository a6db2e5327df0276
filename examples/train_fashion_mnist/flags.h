// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// The command line of the example.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

struct Flags {
  std::string model = "vgg";
  int64_t batch = 64;   // per rank
  int64_t steps = 468;  // one epoch with 2 ranks
  int64_t seed = 0;
  std::string fidelity, policy, strategy, journal;  // empty: gradtune's own default
  std::vector<std::string> compressors;
  std::string export_file, report;
  std::string checkpoint;  // folder; empty: none
  int64_t checkpoint_every = 100;
  std::string data = "/usr/share/datasets/fashion-mnist";
  bool no_gradtune = false;
  bool no_eval = false;
};

// Prints help or what is wrong and ends the process when the command line is not to be run.
Flags parse_flags(int argc, char** argv);
