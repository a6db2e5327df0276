// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// The flags that all examples have: of a job, and of gradtune in it.
#pragma once

#include <CLI/CLI.hpp>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "examples/support/record.h"
#include "gradtune/gradtune.h"

struct JobFlags {
  int64_t batch = 64;  // samples of a rank in a step
  int64_t steps = 468;
  int64_t seed = 0;
  std::string device = "cpu";
  std::string fidelity, policy, strategy, journal, collectives;  // empty: gradtune's own default
  std::vector<std::string> compressors;
  std::string export_file, report;
  bool no_eval = false;
};

// Adds them to the command line; what they hold already are the defaults.
void add_job_flags(CLI::App& app, JobFlags& flags);

// Parses, or prints help or what is wrong and ends the process.
void parse_or_exit(CLI::App& app, int argc, char** argv);

gradtune::Options options_of(const JobFlags& flags);

// At the end of rank 0's training: prints where the time went, exports the strategy and writes the report as flags say.
void finish(const JobFlags& flags, const Record& record, gradtune::Optimizer& optimizer);

// The threads that OMP_NUM_THREADS asks for, then `train`; 1 where that ends with an error, which is printed.
int run_example(const char* name, const std::function<void()>& train);
