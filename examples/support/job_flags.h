// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// The flags that all examples have: for the job, and for gradtune.
#pragma once

#include <CLI/CLI.hpp>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "examples/support/record.h"
#include "gradtune/gradtune.h"

struct JobFlags {
  int64_t batch = 64;  // samples per rank in a step
  int64_t steps = 468;
  int64_t seed = 0;
  std::string device = "cpu";
  std::string fidelity, policy, strategy, journal, collectives;  // empty: gradtune's own default
  std::vector<std::string> compressors;
  std::string export_file, report;
  bool no_eval = false;
};

// Adds them to the command line; the current values of `flags` are the defaults.
void add_job_flags(CLI::App& app, JobFlags& flags);

// Parses the command line, or prints help or an error and ends the process.
void parse_or_exit(CLI::App& app, int argc, char** argv);

gradtune::Options options_of(const JobFlags& flags);

// Called at the end of rank 0's training: prints the parts of the step time, exports the strategy and writes the
// report as the flags say.
void finish(const JobFlags& flags, const Record& record, gradtune::Optimizer& optimizer);

// Sets the number of threads from OMP_NUM_THREADS, then calls `train`. Returns 1 if that throws, after printing the
// error.
int run_example(const char* name, const std::function<void()>& train);
