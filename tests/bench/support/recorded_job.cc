// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// One rank of a recorded job (recorded_rank.h), for the benchmark of predictions. Rank 0 follows a live policy
// `auto`: it watches the baselines, fits the model, measures the policy's proposals, in rounds, and chooses among
// its finalists. Then the model predicts strategies of other kinds, which it has not seen, and all of them are
// measured in alternating blocks. It also forecasts the baseline on other numbers of ranks, as `gradtune what-if` does.
// Predictions and measurements are written as JSON.
#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <nlohmann/json.hpp>
#include <numeric>

#include "engine/compress/compressor.h"
#include "engine/core/median.h"
#include "gradtune/gradtune.h"
#include "policies/cost/timeline.h"
#include "policies/space/baseline.h"
#include "tests/bench/support/arms.h"
#include "tests/bench/support/recorded_rank.h"
#include "tuner/files/cost_file.h"
#include "tuner/files/file_io.h"
#include "tuner/files/trace_file.h"
#include "tuner/forecast/what_if.h"
#include "tuner/statistics.h"

namespace gradtune::bench {
namespace {

struct Flags {
  std::string trace, out;
  double rest_ms = 0;
  std::vector<std::string> compressors = {"bf16", "topk:0.01", "efsignsgd"};
  int host_threads = 1;
  int block_steps = 4, rounds = 3;
  bool operations = false;
  std::vector<int> elsewhere;  // numbers of ranks
};

std::vector<double> without_first(std::vector<double> values) {
  values.erase(values.begin());  // it contains the cost of a switch
  return values;
}

// The steps of rank 0 from the start to a choice, as in tuner/observing.h and tuner/searching.h.
class TunerDriver {
 public:
  TunerDriver(RecordedRank& rank, const Flags& flags, const core::GradientTable& table) : rank_(rank), flags_(flags) {
    const core::TraitsTable known = compress::known_traits();
    knowledge_ = {.table = table,
                  .ranks = rank.seat().ranks(),
                  .fidelity = core::Fidelity::lossy,
                  .codecs = {{"none"}},
                  .traits = known,
                  .host_threads = flags.host_threads,
                  .machine = rank.machine()};
    for (const std::string& text : flags.compressors) {
      knowledge_.codecs.push_back(core::parse_compressor(text, known).value());
    }
  }

  void observe() {
    constexpr int kSteps = 6;
    std::vector<double> compute_ms;
    for (const policies::Candidate& candidate : policies::baselines(knowledge_.table, knowledge_.fidelity)) {
      const Block block = run(candidate.strategy, kSteps);
      const double ms = core::median(without_first(block.step_ms));
      if (knowledge_.baseline_ms == 0 || ms < knowledge_.baseline_ms) {
        knowledge_.baseline_ms = ms;
        baseline_ = candidate;
      }
      compute_ms.insert(compute_ms.end(), block.compute_ms.begin() + 1, block.compute_ms.end());
    }
    knowledge_.table = rank_.seen(knowledge_.codecs);
    knowledge_.compute_ms = core::median(std::move(compute_ms));
    first_ = forecast();
  }

  // Measures the proposals of `auto`, and compares its finalists in alternating blocks for the fastest.
  void tune() {
    const auto policy = policies::make_policy("auto", {}).value();
    policies::Proposal proposal = policy->propose(knowledge_);
    while (!proposal.final) {
      for (const policies::Candidate& candidate : proposal.candidates) {
        const Block block = run(candidate.strategy, flags_.block_steps + 1);
        const double ms = core::median(without_first(block.step_ms));
        policy->learn({.strategy_hash = core::hash(candidate.strategy), .step_ms = ms, .steps = flags_.block_steps});
        measured_.push_back({candidate.strategy, ms});
        tried_.push_back({{"label", candidate.label}, {"predicted_ms", *candidate.predicted_ms}, {"measured_ms", ms}});
      }
      ++policy_rounds_;
      proposal = policy->propose(knowledge_);
    }
    std::vector<Arm> finalists;
    for (policies::Candidate& candidate : proposal.candidates) finalists.push_back({"auto", std::move(candidate)});
    measure(finalists, 2);
    std::ranges::sort(finalists, {}, &TunerDriver::median_ms);
    chosen_ = finalists.empty() ? baseline_ : finalists[0].candidate;
  }

  nlohmann::json compare() {
    const policies::StepTimePredictor learned = forecast();
    std::vector<Arm> arms = {{"auto", chosen_}, {"baseline", baseline_}};
    for (Arm& arm : other_arms(knowledge_, learned)) {
      const auto is_same = [&](const Arm& other) { return other.candidate.strategy == arm.candidate.strategy; };
      if (std::ranges::none_of(arms, is_same)) arms.push_back(std::move(arm));
    }
    for (Arm& arm : arms) {
      const core::Strategy& strategy = arm.candidate.strategy;
      if (const auto step = first_->step(strategy)) arm.first_ms = step->ms;
      if (const auto step = learned.step(strategy)) arm.candidate.predicted_ms = step->ms;
      arm.was_tried = arm.kind == "baseline" || std::ranges::any_of(measured_, [&](const auto& measured) {
                        return measured.strategy == strategy;
                      });
    }
    measure(arms, flags_.rounds);
    nlohmann::json json{{"ranks", knowledge_.ranks.size},
                        {"baseline_ms", knowledge_.baseline_ms},
                        {"compute_ms", knowledge_.compute_ms},
                        {"rounds", policy_rounds_},
                        {"tried", tried_},
                        {"arms", nlohmann::json::array()}};
    for (const int ranks : flags_.elsewhere) json["elsewhere"].push_back(forecast_on(ranks));
    for (const Arm& arm : arms) {
      json["arms"].push_back({{"kind", arm.kind},
                              {"label", arm.candidate.label},
                              {"strategy", core::describe(arm.candidate.strategy, knowledge_.table)},
                              {"was_tried", arm.was_tried},
                              {"first_ms", arm.first_ms.value_or(0)},
                              {"predicted_ms", arm.candidate.predicted_ms.value_or(0)},
                              {"measured_ms", median_ms(arm)},
                              {"blocks_ms", arm.blocks_ms}});
      if (!flags_.operations) continue;
      json["arms"].back()["program"] = core::to_string(arm.candidate.strategy.buckets[0].option);
      json["arms"].back()["timed_us"] = in_us(arm.timed);
      json["arms"].back()["expected_us"] = in_us(expected(arm.candidate.strategy, learned));
    }
    if (flags_.operations) json["cost"] = nlohmann::json::parse(tuner::to_json(learned.cost().table));
    return json;
  }

 private:
  // The step times of that job with more ranks, each on a node of its own. Step times of strategies do not count, as
  // in `gradtune what-if`.
  nlohmann::json forecast_on(int ranks) const {
    const auto model = policies::StepTimePredictor::make(knowledge_, {}).value();
    policies::Knowledge knowledge = knowledge_;
    knowledge.timed.clear();
    knowledge.table = model.table();
    const tuner::Link link = tuner::link_of(model, knowledge_.machine);
    const tuner::RecordedJob job{.knowledge = std::move(knowledge), .model = model, .link = link};
    const auto answer = tuner::answer({{.size = ranks}, link}, job).value();
    return {{"ranks", ranks}, {"baseline_ms", answer.baseline.ms}, {"auto_ms", answer.choice.ms}};
  }

  static double median_ms(const Arm& arm) {
    std::vector<double> all;
    for (const std::vector<double>& block : arm.blocks_ms) all.insert(all.end(), block.begin(), block.end());
    return core::median(std::move(all));
  }

  // Bucket, step, begin and end.
  static nlohmann::json in_us(const std::vector<policies::TimedOp>& steps) {
    nlohmann::json json = nlohmann::json::array();
    for (const policies::TimedOp& step : steps) json.push_back({step.bucket, step.step, step.begin_us, step.end_us});
    return json;
  }

  std::vector<policies::TimedOp> expected(const core::Strategy& strategy,
                                          const policies::StepTimePredictor& forecast) const {
    auto timeline = policies::Timeline::make(knowledge_.table, strategy, forecast.cost().table, knowledge_.traits);
    std::vector<policies::Span> spans;
    if (timeline) timeline.value().run(spans);
    std::vector<policies::TimedOp> steps;
    for (const policies::Span& span : spans) steps.push_back({span.bucket, span.step, span.begin_us, span.end_us});
    return steps;
  }

  Block run(const core::Strategy& strategy, int steps) {
    Block block = rank_.lead(strategy, steps);
    for (policies::TimedRun& timed : block.timed) knowledge_.timed.push_back(std::move(timed));
    return block;
  }

  policies::StepTimePredictor forecast() const {
    return policies::StepTimePredictor::make(knowledge_, measured_).value();
  }

  // The model learns nothing from it. The first arm changes from round to round.
  void measure(std::vector<Arm>& arms, int rounds) {
    for (int round = 0; round < rounds; ++round) {
      const size_t first = static_cast<size_t>(round) * arms.size() / static_cast<size_t>(rounds);
      for (size_t a = 0; a < arms.size(); ++a) {
        Arm& arm = arms[(first + a) % arms.size()];
        Block block = rank_.lead(arm.candidate.strategy, flags_.block_steps);
        arm.blocks_ms.push_back(without_first(block.step_ms));
        arm.timed = std::move(block.timed.back().steps);
      }
    }
  }

  RecordedRank& rank_;
  const Flags& flags_;
  policies::Knowledge knowledge_;
  policies::Candidate baseline_, chosen_;
  std::optional<policies::StepTimePredictor> first_;
  std::vector<policies::MeasuredStrategy> measured_;
  nlohmann::json tried_ = nlohmann::json::array();
  int policy_rounds_ = 0;
};

// The recorded gradients in the order of a job's layout.
core::GradientTable read_table(const std::string& file) {
  const core::GradientTable recorded = tuner::parse_trace(tuner::read_file(file, 1 << 20).value()).value().table;
  std::vector<int32_t> order(recorded.tensors.size());
  std::iota(order.begin(), order.end(), 0);
  core::GradientTable table;
  for (const int32_t t : core::small_last(recorded, order)) {
    table.tensors.push_back(recorded.tensors[static_cast<size_t>(t)]);
  }
  return table;
}

void work(const Flags& flags) {
  const core::GradientTable table = read_table(flags.trace);
  const auto group = init_process_group();
  RecordedRank rank(group, {table, flags.rest_ms}, flags.host_threads);
  if (rank.rank() > 0) return rank.follow();
  TunerDriver pilot(rank, flags, table);
  pilot.observe();
  pilot.tune();
  const nlohmann::json compared = pilot.compare();
  rank.dismiss();
  tuner::write_file_atomically(flags.out, compared.dump(1) + "\n").value();
}

}  // namespace
}  // namespace gradtune::bench

int main(int argc, char** argv) {
  gradtune::bench::Flags flags;
  CLI::App app{"One rank of a job whose computation is recorded; rank 0 writes what was predicted and measured"};
  app.add_option("trace", flags.trace, "gradients and when they were ready")->required();
  app.add_option("out", flags.out, "file to write")->required();
  app.add_option("--rest-ms", flags.rest_ms, "of a step, beside what lies between the gradients");
  app.add_option("--compressors", flags.compressors)->delimiter(',')->capture_default_str();
  app.add_option("--host-threads", flags.host_threads)->capture_default_str();
  app.add_flag("--operations", flags.operations, "write what each operation took, too, and what it was expected to");
  app.add_option("--rounds", flags.rounds, "of measured blocks")->capture_default_str();
  app.add_option("--elsewhere", flags.elsewhere, "numbers of ranks to forecast the baseline for")->delimiter(',');
  CLI11_PARSE(app, argc, argv);
  try {
    gradtune::bench::work(flags);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "recorded_job: %s\n", error.what());
    return 1;
  }
}
