// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// The program `gradtune`, for everything outside of a training job. Its exit code is 0, 1 (it failed, and says why)
// or 2 (the command line is wrong).
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <exception>
#include <functional>
#include <memory>
#include <optional>
#include <sstream>

#include "engine/core/unknown_name.h"
#include "engine/core/version.h"
#include "policies/planner.h"
#include "tuner/cli/cost.h"
#include "tuner/cli/explain.h"
#include "tuner/cli/replay.h"
#include "tuner/cli/report.h"
#include "tuner/cli/trace.h"
#include "tuner/cli/what_if.h"
#include "tuner/files/printable.h"

namespace {

constexpr int kFailed = 1, kMisused = 2;
constexpr int kMostRanks = 1 << 20;

int refuse(const std::string& why, int status) {
  std::fprintf(stderr, "gradtune: %s\n", gradtune::tuner::printable(why).c_str());
  return status;
}

// An incomplete write is a failure: the reader would take a part of the output for the whole.
int print(const std::string& text) {
  const std::string shown = gradtune::tuner::printable(text);
  errno = 0;
  const bool is_written = std::fwrite(shown.data(), 1, shown.size(), stdout) == shown.size();
  if (is_written && std::fflush(stdout) == 0) return 0;
  return refuse(std::string("can not write to standard output: ") + std::strerror(errno), kFailed);
}

std::string planner_names() {
  std::string names;
  for (const auto& row : gradtune::policies::planner_table()) {
    names += "\n  " + std::string(row.name) + ": " + std::string(row.summary);
  }
  return names;
}

// Unlike CLI::Range, this refuses a NaN.
CLI::Validator number_within(double least, double most) {
  const std::string range = fmt::format("from {} to {}", least, most);
  const auto check = [=](const std::string& text) {
    double number = 0;
    const bool is_good = CLI::detail::lexical_cast(text, number) && number >= least && number <= most;
    return is_good ? std::string() : fmt::format("\"{}\" is not allowed; allowed is a number {}", text, range);
  };
  return {check, range};
}

CLI::Validator whole_number_within(int least, int most) {
  const std::string range = fmt::format("from {} to {}", least, most);
  const auto check = [=](const std::string& text) {
    int number = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
    const bool is_good = error == std::errc() && end == text.data() + text.size() && number >= least && number <= most;
    return is_good ? std::string() : fmt::format("\"{}\" is not allowed; allowed is a whole number {}", text, range);
  };
  return {check, range};
}

CLI::Validator file_name() {
  return {[](const std::string& text) {
            return std::string(text.empty() ? "the name is empty; allowed is the name of a file" : "");
          },
          "FILE"};
}

CLI::Validator fidelity_name() {
  return {[](const std::string& text) {
            const auto fidelity = gradtune::core::parse_fidelity(text);
            return fidelity ? std::string() : fidelity.error().message;
          },
          ""};
}

// An option of one cost model has no meaning under another.
std::optional<std::string> misplaced(const CLI::App& replay, const gradtune::tuner::ReplayOptions& options) {
  const bool is_published = options.cost == "published", is_linear = options.cost.starts_with("linear:");
  const auto is_given = [&](const char* name) { return !replay.get_option(name)->empty(); };
  for (const char* name : {"--fidelity", "--world-size", "--chrome"}) {
    const bool is_for_linear = std::string_view(name) == "--chrome";
    if (is_given(name) && (is_published || (is_linear && !is_for_linear)))
      return fmt::format("{} needs --cost FILE", name);
  }
  for (const char* name : {"--compressor", "--intra", "--machines", "--gpus-per-machine", "--two-level"}) {
    if (is_given(name) && !is_published)
      return fmt::format("{} is for the published model, which needs no --cost", name);
  }
  if (int64_t{options.published.machines} * options.published.gpus_per_machine > kMostRanks) {
    return fmt::format("--machines {} of --gpus-per-machine {} are too many ranks; allowed are {}",
                       options.published.machines, options.published.gpus_per_machine, kMostRanks);
  }
  if (options.ranks.local_size > 0 && options.ranks.size % options.ranks.local_size != 0) {
    return fmt::format("--ranks-per-node {} does not divide --world-size {}", options.ranks.local_size,
                       options.ranks.size);
  }
  return {};
}

// Text that the function can parse.
template <typename Value>
CLI::Validator parsed_by(gradtune::core::Result<Value> (*parse)(const std::string&)) {
  return {[parse](const std::string& text) {
            const auto value = parse(text);
            return value ? std::string() : value.error().message;
          },
          ""};
}

std::vector<std::string_view> views(const std::vector<std::string>& texts) { return {texts.begin(), texts.end()}; }

// Names unknown words of the command line, and the known ones that were probably meant.
std::optional<std::string> unknown_words(const CLI::App& app, const char* first) {
  std::vector<std::string> commands, flags;
  for (const CLI::App* command : app.get_subcommands({})) commands.push_back(command->get_name());
  const bool is_command = std::ranges::find(commands, first) != commands.end();
  if (first[0] != '-' && !is_command) return gradtune::core::unknown_name("subcommand", first, views(commands));
  for (const CLI::App* each : {&app, is_command ? app.get_subcommand(first) : &app}) {
    for (const CLI::Option* option : each->get_options()) {
      for (const std::string& name : option->get_lnames()) flags.push_back("--" + name);
    }
  }
  for (const std::string& word : app.remaining(/*recurse=*/true)) {
    const std::string flag = word.substr(0, word.find('='));
    if (flag.starts_with('-'))
      return "option " + flag + " is unknown" + gradtune::core::did_you_mean(flag, views(flags));
    return "\"" + word + "\" is one argument too many";
  }
  return {};
}

// Help and the version are output; all else is misuse.
int end_parsing(const CLI::App& app, const CLI::ParseError& error, const char* first) {
  std::ostringstream out, err;
  if (app.exit(error, out, err) == 0) return print(out.str());
  if (const auto unknown = unknown_words(app, first)) {
    return refuse(*unknown + "; gradtune --help says what there is", kMisused);
  }
  std::fputs(gradtune::tuner::printable(err.str()).c_str(), stderr);
  return kMisused;
}

// A subcommand. `misuse` says what is wrong with its options together; empty: nothing.
struct Command {
  CLI::App* app;
  std::function<gradtune::core::Result<std::string>()> run;
  std::function<std::string()> misuse = [] { return std::string(); };
};

void add_published_model(CLI::App* replay, gradtune::tuner::ReplayOptions& options) {
  replay->add_option("--compressor", options.published.compressor,
                     "Of the published model: randomk (default), dgc, efsignsgd, onebit");
  replay->add_option("--intra", options.published.intra, "Its link inside a machine: pcie (default), nvl");
  replay->add_option("--machines", options.published.machines, "default 8")->check(whole_number_within(1, kMostRanks));
  replay->add_option("--gpus-per-machine", options.published.gpus_per_machine, "default 8")
      ->check(whole_number_within(1, kMostRanks));
  replay->add_flag("--two-level", options.published.two_level, "Also compress inside a machine (option 3)");
}

Command add_replay(CLI::App& app) {
  struct Options : gradtune::tuner::ReplayOptions {
    std::string fidelity_name = "lossy";
  };
  const auto options = std::make_shared<Options>();
  CLI::App* replay = app.add_subcommand("replay", "Plan for a recorded job under a cost model, and replay the plan");
  replay->add_option("trace", options->trace, "Trace file (JSON): tensors in backward order with ready times")
      ->required()
      ->check(file_name());
  replay->add_option("--policy", options->policy, "Who plans (default auto):" + planner_names());
  replay
      ->add_option(
          "--cost", options->cost,
          "published (default, of Espresso's simulator); linear:A_US:B_NS, where a message of x elements takes "
          "A us + B x ns on one channel and nothing is compressed; or a cost file (JSON)")
      ->check(file_name());
  add_published_model(replay, *options);
  replay
      ->add_option("--forward", options->forward,
                   "The step goes on into the next forward pass: for each tensor this share of its time in backward")
      ->check(number_within(0, 1e3));
  replay->add_option("--fidelity", options->fidelity_name, "With a cost file: exact, half or lossy (default)")
      ->check(fidelity_name());
  CLI::Option* ranks =
      replay->add_option("--world-size", options->ranks.size, "With a cost file: as many ranks instead")
          ->check(whole_number_within(1, kMostRanks));
  replay->add_option("--ranks-per-node", options->ranks.local_size, "... of which so many share a node")
      ->check(whole_number_within(0, kMostRanks))
      ->needs(ranks);
  replay
      ->add_option("--chrome", options->chrome,
                   "With a cost file: also write the predicted step here, for about:tracing or Perfetto")
      ->check(file_name());
  replay->add_flag("--json", options->json, "Print one JSON object instead of a table");
  const auto run = [options] {
    options->fidelity = gradtune::core::parse_fidelity(options->fidelity_name).value();
    return gradtune::tuner::replay(*options);
  };
  const auto misuse = [options, replay] { return misplaced(*replay, *options).value_or(""); };
  return {replay, run, misuse};
}

void add_journal(CLI::App* command, std::string& journal) {
  command->add_option("journal", journal, "Journal file, as GRADTUNE_JOURNAL names it")->required()->check(file_name());
}

// A subcommand that writes a file which it derives from a journal.
Command add_maker(CLI::App& app, const char* name, const char* what,
                  gradtune::core::Result<std::string> (*make)(const std::string&, const std::string&)) {
  struct Options {
    std::string journal, output;
  };
  const auto options = std::make_shared<Options>();
  CLI::App* maker = app.add_subcommand(name, what);
  add_journal(maker, options->journal);
  maker->add_option("-o,--output", options->output, "File to write")->required()->check(file_name());
  return {maker, [options, make] { return make(options->journal, options->output); }};
}

Command add_report(CLI::App& app) {
  const auto options = std::make_shared<gradtune::tuner::ReportOptions>();
  CLI::App* report =
      app.add_subcommand("report", "Say what a job's journal tells: is it tuned, what was chosen, did it help");
  add_journal(report, options->journal);
  report
      ->add_option("--trace", options->trace, "Trace with ready times, for a journal that ended before they were known")
      ->check(file_name());
  report->add_option("-o,--output", options->output, "HTML page to write; without it the report is printed in short")
      ->check(file_name());
  report
      ->add_option("--chrome", options->chrome,
                   "Also write the measured steps, before and after, here, for about:tracing or Perfetto")
      ->check(file_name());
  return {report, [options] { return gradtune::tuner::report(*options); }};
}

Command add_what_if(CLI::App& app) {
  struct Options : gradtune::tuner::WhatIfOptions {
    std::string fidelity_name;
  };
  const auto options = std::make_shared<Options>();
  CLI::App* what_if = app.add_subcommand(
      "what-if", "Say how long a step of a recorded job would take on other links or numbers of ranks");
  add_journal(what_if, options->journal);
  const auto add_list = [&](const char* name, auto& values, const std::string& what) {
    return what_if->add_option(name, values, what + "; several: a,b,c. Default: as recorded")->delimiter(',');
  };
  add_list("--world-size", options->world_sizes, "Number of ranks")
      ->check(CLI::Range(2, gradtune::tuner::kMostWhatIfRanks));
  what_if->add_option("--ranks-per-node", options->ranks_per_node, "So many of them share a node and its link")
      ->check(CLI::Range(1, gradtune::tuner::kMostWhatIfRanks));
  add_list("--rate", options->rates, "Rate of the link of a rank or node, such as 25gbit")
      ->check(parsed_by(gradtune::tuner::parse_rate_mbit));
  add_list("--delay", options->delays, "Delay of the link, one way, such as 50us")
      ->check(parsed_by(gradtune::tuner::parse_delay_us));
  what_if->add_option("--fidelity", options->fidelity_name, "exact, half or lossy. Default: as recorded")
      ->check(fidelity_name());
  what_if->add_flag("--json", options->json, "Print one JSON object instead of sentences and a table");
  return {what_if, [options] {
            if (!options->fidelity_name.empty())
              options->fidelity = gradtune::core::parse_fidelity(options->fidelity_name).value();
            return gradtune::tuner::what_if(*options);
          }};
}

Command add_explain(CLI::App& app) {
  const auto options = std::make_shared<gradtune::tuner::ExplainOptions>();
  CLI::App* explain =
      app.add_subcommand("explain", "Say why gradients are sent as they are, what limits a step, and what would help");
  explain->add_option("file", options->file, "Journal, or strategy file with --trace and --cost")
      ->required()
      ->check(file_name());
  explain->add_option("--trace", options->trace, "For a strategy file: trace of its model")->check(file_name());
  explain->add_option("--cost", options->cost, "For a strategy file: cost file")->check(file_name());
  return {explain, [options] { return gradtune::tuner::explain(*options); }};
}

int run(int argc, char** argv) {
  CLI::App app{"Plans gradient communication for recorded jobs, and reports what a job chose and why."};
  app.name("gradtune");
  app.require_subcommand(1);
  app.set_version_flag("--version", "gradtune " + std::string(gradtune::core::version()));
  const Command commands[] = {
      add_replay(app),
      add_maker(app, "trace", "Make a trace of a job from its journal", gradtune::tuner::write_trace),
      add_maker(app, "cost", "Make a cost file of a job from its journal", gradtune::tuner::write_cost),
      add_report(app),
      add_what_if(app),
      add_explain(app),
  };
  if (argc < 2) {
    std::fputs(app.help().c_str(), stderr);
    return refuse("a subcommand is needed", kMisused);
  }
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return end_parsing(app, error, argv[1]);
  }
  const Command& command = *std::ranges::find_if(commands, [](const Command& each) { return each.app->parsed(); });
  if (const std::string misuse = command.misuse(); !misuse.empty()) return refuse(misuse, kMisused);
  const auto text = command.run();
  return text ? print(text.value()) : refuse(text.error().message, kFailed);
}

}  // namespace

int main(int argc, char** argv) {
  try {
    return run(argc, argv);
  } catch (const std::exception& error) {
    return refuse(error.what(), kFailed);
  }
}
