// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// The program `gradtune`, for what is done outside of a training job. Ends with 0, 1 (it failed, and says why) or 2 (it
// was called in a way that it does not know).
#include <CLI/CLI.hpp>
#include <cstdio>

#include "policies/planner.h"
#include "tuner/cli/replay.h"
#include "tuner/cli/trace.h"

namespace {

std::string planner_names() {
  std::string names;
  for (const auto& row : gradtune::policies::planner_table()) {
    names += "\n  " + std::string(row.name) + ": " + std::string(row.summary);
  }
  return names;
}

}  // namespace

int main(int argc, char** argv) {
  CLI::App app{"Plans gradient communication for recorded jobs."};
  app.name("gradtune");
  app.require_subcommand(1);

  gradtune::tuner::ReplayOptions options;
  std::string cost = "published";
  CLI::App* replay = app.add_subcommand("replay", "Plan for a recorded job under a cost model, and replay the plan");
  replay->add_option("trace", options.trace, "Trace file (JSON): tensors in backward order with ready times")
      ->required();
  replay->add_option("--policy", options.policy, "Who plans (default auto):" + planner_names());
  replay->add_option("--cost", cost, "The cost model: published (of Espresso's simulator)")
      ->check(CLI::IsMember({"published"}));
  replay->add_option("--compressor", options.cost.compressor, "randomk (default), dgc, efsignsgd, onebit");
  replay->add_option("--intra", options.cost.intra, "Link inside a machine: pcie (default), nvl");
  replay->add_option("--machines", options.cost.machines, "default 8");
  replay->add_option("--gpus-per-machine", options.cost.gpus_per_machine, "default 8");
  replay->add_flag("--two-level", options.cost.two_level, "Also compress inside a machine (option 3)");
  replay->add_flag("--json", options.json, "Print one JSON object instead of a table");

  std::string journal, output;
  CLI::App* trace = app.add_subcommand("trace", "Make a trace of a job from its journal");
  trace->add_option("journal", journal, "Journal file, as GRADTUNE_JOURNAL names it")->required();
  trace->add_option("-o,--output", output, "File for the trace")->required();

  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : 2;
  }
  const auto text = replay->parsed() ? gradtune::tuner::replay(options) : gradtune::tuner::write_trace(journal, output);
  if (!text) {
    std::fprintf(stderr, "gradtune: %s\n", text.error().message.c_str());
    return 1;
  }
  std::fputs(text.value().c_str(), stdout);
  return 0;
}
