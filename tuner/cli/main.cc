// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// The program `gradtune`, for what is done outside of a training job. Ends with 0, 1 (it failed, and says why) or 2 (it
// was called in a way that it does not know).
#include <CLI/CLI.hpp>
#include <cstdio>
#include <exception>

#include "policies/planner.h"
#include "tuner/cli/cost.h"
#include "tuner/cli/replay.h"
#include "tuner/cli/report.h"
#include "tuner/cli/trace.h"

namespace {

std::string planner_names() {
  std::string names;
  for (const auto& row : gradtune::policies::planner_table()) {
    names += "\n  " + std::string(row.name) + ": " + std::string(row.summary);
  }
  return names;
}

int run(int argc, char** argv) {
  CLI::App app{"Plans gradient communication for recorded jobs, and reports what a job chose and why."};
  app.name("gradtune");
  app.require_subcommand(1);

  gradtune::tuner::ReplayOptions options;
  std::string fidelity = "lossy";
  CLI::App* replay = app.add_subcommand("replay", "Plan for a recorded job under a cost model, and replay the plan");
  replay->add_option("trace", options.trace, "Trace file (JSON): tensors in backward order with ready times")
      ->required();
  replay->add_option("--policy", options.policy, "Who plans (default auto):" + planner_names());
  replay->add_option(
      "--cost", options.cost,
      "published (default, of Espresso's simulator); linear:A_US:B_NS, where a message of x elements takes "
      "A us + B x ns on one channel and nothing is compressed; or a cost file (JSON)");
  replay->add_option("--compressor", options.published.compressor,
                     "Of the published model: randomk (default), dgc, efsignsgd, onebit");
  replay->add_option("--intra", options.published.intra, "Its link inside a machine: pcie (default), nvl");
  replay->add_option("--machines", options.published.machines, "default 8");
  replay->add_option("--gpus-per-machine", options.published.gpus_per_machine, "default 8");
  replay->add_flag("--two-level", options.published.two_level, "Also compress inside a machine (option 3)");
  replay
      ->add_option("--forward", options.forward,
                   "The step goes on into the next forward pass: for each tensor this share of its time in backward")
      ->check(CLI::Range(0.0, 1e3));
  CLI::Option* allowed = replay->add_option("--fidelity", fidelity, "With a cost file: exact, half or lossy (default)")
                             ->check(CLI::IsMember({"exact", "half", "lossy"}));
  CLI::Option* ranks = replay->add_option("--world-size", options.ranks.size, "With a cost file: as many ranks instead")
                           ->check(CLI::Range(1, 1 << 20));
  replay->add_option("--ranks-per-node", options.ranks.local_size, "... of which so many share a node")
      ->check(CLI::Range(0, 1 << 20))
      ->needs(ranks);
  CLI::Option* chrome =
      replay->add_option("--chrome", options.chrome,
                         "With a cost file: also write the predicted step here, for about:tracing or Perfetto");
  replay->add_flag("--json", options.json, "Print one JSON object instead of a table");

  std::string journal, output;
  CLI::App* trace = app.add_subcommand("trace", "Make a trace of a job from its journal");
  CLI::App* cost = app.add_subcommand("cost", "Make a cost file of a job from its journal");
  for (CLI::App* command : {trace, cost}) {
    command->add_option("journal", journal, "Journal file, as GRADTUNE_JOURNAL names it")->required();
    command->add_option("-o,--output", output, "File to write")->required();
  }

  gradtune::tuner::ReportOptions reported;
  CLI::App* report =
      app.add_subcommand("report", "Say what a job's journal tells: is it tuned, what was chosen, did it help");
  report->add_option("journal", reported.journal, "Journal file, as GRADTUNE_JOURNAL names it")->required();
  report->add_option("--trace", reported.trace,
                     "Trace with ready times, for a journal that ended before they were known");
  report->add_option("-o,--output", reported.output, "HTML page to write; without it the report is printed in short");

  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : 2;
  }
  options.fidelity = gradtune::core::parse_fidelity(fidelity).value();
  for (const CLI::Option* option : {allowed, ranks, chrome}) {
    if (option->empty() || options.cost != "published") continue;
    std::fprintf(stderr, "gradtune: %s needs --cost FILE\n", option->get_name().c_str());
    return 2;
  }
  if (options.ranks.local_size > 0 && options.ranks.size % options.ranks.local_size != 0) {
    std::fprintf(stderr, "gradtune: --ranks-per-node %d does not divide --world-size %d\n", options.ranks.local_size,
                 options.ranks.size);
    return 2;
  }
  const auto text = replay->parsed()   ? gradtune::tuner::replay(options)
                    : report->parsed() ? gradtune::tuner::report(reported)
                    : cost->parsed()   ? gradtune::tuner::write_cost(journal, output)
                                       : gradtune::tuner::write_trace(journal, output);
  if (!text) {
    std::fprintf(stderr, "gradtune: %s\n", text.error().message.c_str());
    return 1;
  }
  std::fputs(text.value().c_str(), stdout);
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  try {
    return run(argc, argv);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "gradtune: %s\n", error.what());
    return 1;
  }
}
