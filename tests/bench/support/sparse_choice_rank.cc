// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// A rank of the benchmark "sparse_choice": trains one table and reads other rows in each step. Policy `auto` tunes
// first. Then each scheme is pinned in turn in the same processes, and rank 0 writes the step times.
//
// Each rank reads `density` of the rows. A share `overlap` of these are the same on all ranks, the others are its
// own. This is the overlap of any two ranks as Zen defines it, rows that both have over rows that one has. If the
// table has too few rows for that, ranks far apart share some of their own, and the overlap is larger.
#include <torch/torch.h>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <limits>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "engine/compress/compressor.h"
#include "engine/core/median.h"
#include "engine/core/strategy.h"
#include "gradtune/gradtune.h"
#include "policies/space/sparse_tensors.h"
#include "tuner/files/strategy_file.h"

namespace gradtune::bench {
namespace {

using torch::Tensor;

struct Flags {
  int64_t rows = 100'000, width = 32;
  double density = 0.01, overlap = 0.5;
  int64_t tuning = 300, rounds = 7, steps = 6;
  std::filesystem::path folder;
};

constexpr const char* kCodecs[] = {"rows", "coo", "blocks"};

constexpr int64_t kDraws = 8;         // batches, which repeat
constexpr int64_t kDropped = 2;       // first steps of a block, after a switch
constexpr int64_t kMostSteps = 60;    // of a block
constexpr double kBlockMs = 250;      // shortest duration of a block
constexpr double kWorthTwice = 2;     // factor over the fastest of the first round, up to which it runs again
constexpr double kWorthAgain = 1.25;  // factor over the fastest of all rounds so far, once there are kEnough
constexpr int64_t kEnough = 3;
constexpr int64_t kTuningSteps = 10;     // between two checks if `auto` has decided
constexpr const char* kChosen = "auto";  // its choice, if it is none of the pinned schemes

struct Arm {
  std::string name;
  std::filesystem::path file;  // strategy
  std::vector<core::Bucket> buckets;
  std::vector<double> blocks_ms = {};  // medians
  bool is_worth_it = true;             // to be measured again
};

// The rows that ranks read, and the common part of these sets.
struct Batches {
  Batches(const Flags& flags, int rank, int ranks) {
    const int64_t of_one_rank = std::max<int64_t>(std::llround(flags.density * static_cast<double>(flags.rows)), 1);
    const int64_t common = std::llround(flags.overlap * static_cast<double>(of_one_rank)), own = of_one_rank - common;
    for (int64_t draw = 0; draw < kDraws; ++draw) {
      torch::manual_seed(draw);  // the same on all ranks
      const Tensor order = torch::randperm(flags.rows);
      const auto of_rank = [&](int64_t r) {
        const Tensor at = (r * own + torch::arange(own)) % std::max<int64_t>(flags.rows - common, 1);
        return torch::cat({order.slice(0, 0, common), order.index({common + at})});
      };
      ids.push_back(of_rank(rank));
      if (draw > 0) continue;
      const Tensor has = torch::zeros({ranks, flags.rows});
      for (int64_t r = 0; r < ranks; ++r) has[r].index_fill_(0, of_rank(r), 1);
      const Tensor in_both = has.matmul(has.t());
      of_one = in_both[0][0].item<double>() / static_cast<double>(flags.rows);
      of_all = has.amax(0).sum().item<double>() / static_cast<double>(flags.rows);
      shared = (in_both.sum() - in_both.trace()).item<double>() / (ranks - 1) / in_both.trace().item<double>();
    }
  }

  std::vector<Tensor> ids;
  double of_one = 0, of_all = 0;  // share of rows that one rank reads, and that any rank reads
  double shared = 0;              // overlap of two ranks, mean over pairs
};

class ChoiceRank {
 public:
  explicit ChoiceRank(const Flags& flags)
      : flags_(flags),
        batches_(flags, group_->getRank(), group_->getSize()),
        table_(torch::nn::EmbeddingOptions(flags.rows, flags.width).sparse(true)),
        weights_(torch::rand({batches_.ids[0].size(0), flags.width}) - 0.5),
        sgd_(table_->parameters(), 0.5) {}

  bool leads() const { return group_->getRank() == 0; }

  // Runs until `auto` has decided, or for the given number of steps.
  void tune() {
    wrap({.journal = file("journal.jsonl"), .policy = "auto"});
    int64_t decided = 0;
    for (int64_t done = 0; done < flags_.tuning && decided == 0; done += kTuningSteps) {
      for (int64_t s = 0; s < kTuningSteps; ++s) step();
      decided = of_leader({wrapped_->result().decided ? 1 : 0})[0];
      wrapped_->exclude_step();
    }
    wrapped_->export_strategy(file("auto.json"));
    const Optimizer::Result result = wrapped_->result();
    report_ = {{"of_one", batches_.of_one}, {"of_all", batches_.of_all}, {"overlap", batches_.shared},
               {"decided", result.decided}, {"label", result.strategy},  {"description", result.description},
               {"tuning", result.steps}};
    if (result.predicted_ms) report_["predicted_ms"] = *result.predicted_ms;
  }

  // On rank 0, which decides what runs next: all schemes, then those that are worth it.
  void lead() {
    std::vector<Arm> arms = make_arms();
    int64_t steps = flags_.steps;
    for (int64_t round = 0; round < flags_.rounds; ++round) {
      for (size_t a = 0; a < arms.size(); ++a) {
        const size_t arm = (a + static_cast<size_t>(round)) % arms.size();
        if (!arms[arm].is_worth_it) continue;
        const std::vector<int64_t> order = of_leader({static_cast<int64_t>(arm), steps});
        arms[arm].blocks_ms.push_back(block_ms(order[0], order[1]));
      }
      double least_ms = std::numeric_limits<double>::infinity();
      for (const Arm& arm : arms) least_ms = std::min(least_ms, core::median(arm.blocks_ms));
      const double worth = round == 0 ? kWorthTwice : kWorthAgain;
      for (Arm& arm : arms) {
        const bool is_slow = core::median(arm.blocks_ms) > worth * least_ms;
        if (arm.name != chosen_ && is_slow && (round == 0 || round + 1 >= kEnough)) arm.is_worth_it = false;
      }
      steps = std::clamp(static_cast<int64_t>(kBlockMs / least_ms), flags_.steps, std::max(kMostSteps, flags_.steps));
    }
    of_leader({-1, 0});
    report_["chosen"] = chosen_;
    for (const Arm& arm : arms) report_["blocks_ms"][arm.name] = arm.blocks_ms;
    std::ofstream(file("report.json")) << report_.dump();
  }

  // On the others.
  void follow() {
    for (;;) {
      const std::vector<int64_t> order = of_leader({0, 0});
      if (order[0] < 0) return;
      block_ms(order[0], order[1]);
    }
  }

 private:
  std::string file(const std::string& name) const { return flags_.folder / name; }
  std::string strategy_of(int64_t arm) const { return file("arm" + std::to_string(arm) + ".json"); }

  void wrap(Options options) {
    options.fidelity = "exact";
    wrapped_.emplace(gradtune::wrap(sgd_, *table_, group_, options));
  }

  void step() {
    wrapped_->zero_grad();
    const Tensor rows = table_->forward(batches_.ids[static_cast<size_t>(steps_++ % kDraws)]);
    (rows * weights_).sum().backward();
    wrapped_->step();
  }

  // The numbers that rank 0 sends.
  std::vector<int64_t> of_leader(std::vector<int64_t> words) {
    std::vector<Tensor> message{torch::tensor(words)};
    group_->broadcast(message)->wait();
    std::copy_n(message[0].data_ptr<int64_t>(), words.size(), words.begin());
    return words;
  }

  // The median of the steps under that arm's strategy.
  double block_ms(int64_t arm, int64_t steps) {
    wrap({.strategy = strategy_of(arm), .tuning_budget = 0});
    std::vector<double> ms;
    for (int64_t s = 0; s < kDropped + steps; ++s) {
      const auto began = std::chrono::steady_clock::now();
      step();
      if (s < kDropped) continue;
      ms.push_back(std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - began).count());
    }
    return core::median(std::move(ms));
  }

  // Each scheme for the whole table, and the chosen strategy if it is none of them.
  std::vector<Arm> make_arms() {
    const core::TraitsTable known = compress::known_traits();
    const tuner::StrategyFile tuned =
        tuner::parse_strategy(tuner::read_file(file("auto.json"), 1 << 20).value(), known).value();
    std::vector<Arm> arms;
    const auto add = [&](const std::string& name, tuner::StrategyFile strategy) {
      arms.push_back({name, strategy_of(static_cast<int64_t>(arms.size())), strategy.strategy.buckets});
      tuner::write_file_atomically(arms.back().file, tuner::to_json(strategy)).value();
    };
    const auto pin = [&](const std::string& name, const core::Option& option) {
      tuner::StrategyFile pinned = tuned;
      pinned.label = name;
      pinned.strategy.buckets = {{.slices = {{0, 0, flags_.rows * flags_.width}}, .option = option}};
      core::set_default_flow(pinned.strategy);
      add(name, pinned);
    };
    pin("all_reduce", core::plain_all_reduce());
    std::vector<core::Option> pinned;
    for (const policies::SparseScheme& scheme : policies::sparse_schemes()) {
      for (const char* codec : kCodecs) {
        const core::Option option = scheme.make({codec}, core::Place::device, group_->getSize());
        if (std::ranges::find(pinned, option) != pinned.end()) continue;
        pinned.push_back(option);
        pin(std::string(codec) + " " + std::string(scheme.name), option);
      }
    }
    const auto chosen = std::ranges::find(arms, tuned.strategy.buckets, &Arm::buckets);
    chosen_ = chosen == arms.end() ? kChosen : chosen->name;
    if (chosen == arms.end()) add(kChosen, tuned);
    return arms;
  }

  const Flags flags_;
  const c10::intrusive_ptr<c10d::ProcessGroup> group_ = init_process_group();
  const Batches batches_;
  torch::nn::Embedding table_;
  const Tensor weights_;  // of the loss
  torch::optim::SGD sgd_;
  std::optional<Optimizer> wrapped_;
  int64_t steps_ = 0;
  std::string chosen_;  // name of an arm
  nlohmann::json report_;
};

}  // namespace
}  // namespace gradtune::bench

int main(int argc, char** argv) {
  CLI::App app("a rank of the benchmark \"sparse_choice\"");
  gradtune::bench::Flags flags;
  app.add_option("--rows", flags.rows, "of the table")->check(CLI::PositiveNumber);
  app.add_option("--width", flags.width, "elements of a row")->check(CLI::PositiveNumber);
  app.add_option("--density", flags.density, "share of rows that a rank reads")->check(CLI::Range(0.0, 1.0));
  app.add_option("--overlap", flags.overlap, "share of these that all ranks read")->check(CLI::Range(0.0, 1.0));
  app.add_option("--tuning", flags.tuning, "steps after which what is committed counts as chosen");
  app.add_option("--rounds", flags.rounds)->check(CLI::PositiveNumber);
  app.add_option("--steps", flags.steps, "of a block, at least")->check(CLI::PositiveNumber);
  app.add_option("--folder", flags.folder, "for report.json, journal.jsonl and strategies")->required();
  CLI11_PARSE(app, argc, argv);
  at::set_num_threads(1);
  gradtune::bench::ChoiceRank rank(flags);
  rank.tune();
  rank.leads() ? rank.lead() : rank.follow();
  return 0;
}
