// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
#include "examples/support/job_flags.h"

#include <torch/utils.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <exception>

void add_job_flags(CLI::App& app, JobFlags& flags) {
  app.add_option("--batch", flags.batch, "samples per rank and step")
      ->capture_default_str()
      ->check(CLI::Range(1, 60000));
  app.add_option("--steps", flags.steps)->capture_default_str()->check(CLI::Range(1, 1 << 30));
  app.add_option("--seed", flags.seed, "of the model's initial values and the order of the data")
      ->capture_default_str();
  app.add_option("--device", flags.device, "cpu, cuda or cuda:N")->capture_default_str();
  app.add_option("--collectives", flags.collectives, "auto, gloo, or nccl for gradients on CUDA devices");
  app.add_option("--fidelity", flags.fidelity, "exact, half or lossy");
  app.add_option("--compressors", flags.compressors, "allow-list, such as topk:0.01")->delimiter(',');
  app.add_option("--policy", flags.policy, "auto, mergecomp, fixed or exhaustive");
  app.add_option("--strategy", flags.strategy, "file to start from");
  app.add_option("--export", flags.export_file, "file for the strategy in force at the end");
  app.add_option("--journal", flags.journal, "file for what the tuner saw and decided");
  app.add_option("--report", flags.report, "file for times, losses and the result");
  app.add_flag("--no-eval", flags.no_eval, "do not measure the result at the end");
}

void parse_or_exit(CLI::App& app, int argc, char** argv) {
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    std::exit(app.exit(error));
  }
}

gradtune::Options options_of(const JobFlags& flags) {
  gradtune::Options options;
  if (!flags.fidelity.empty()) options.fidelity = flags.fidelity;
  if (!flags.compressors.empty()) options.compressors = flags.compressors;
  if (!flags.policy.empty()) options.policy = flags.policy;
  if (!flags.strategy.empty()) options.strategy = flags.strategy;
  if (!flags.journal.empty()) options.journal = flags.journal;
  if (!flags.collectives.empty()) options.collectives = flags.collectives;
  return options;
}

void finish(const JobFlags& flags, const Record& record, gradtune::Optimizer& optimizer) {
  std::fputs(record.where_time_went(optimizer).c_str(), stdout);
  if (!flags.export_file.empty()) optimizer.export_strategy(flags.export_file);
  if (!flags.report.empty()) record.write(flags.report, &optimizer);
}

int run_example(const char* name, const std::function<void()>& train) {
  try {
    // A reader of a pipe or a file should see the progress of the job.
    std::setvbuf(stdout, nullptr, _IOLBF, BUFSIZ);
    if (const char* threads = std::getenv("OMP_NUM_THREADS")) torch::set_num_threads(std::max(1, std::atoi(threads)));
    train();
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s: %s\n", name, error.what());
    return 1;
  }
  return 0;
}
