// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// Training jobs that end and continue in other processes. The test drives their clock, so step times are given.
#pragma once

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <atomic>
#include <cstdint>
#include <cstdlib>
#include <exception>
#include <fstream>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "engine/compress/compressor.h"
#include "engine/core/clock.h"
#include "engine/core/hash.h"
#include "engine/core/strategy.h"
#include "hooks/gradients.h"
#include "hooks/module_model.h"
#include "hooks/session.h"
#include "hooks/trained_by.h"
#include "tests/hooks/jobs.h"
#include "tests/hooks/ranks.h"
#include "tests/temp_folder.h"
#include "tuner/files/checkpoint_file.h"
#include "tuner/files/file_io.h"
#include "tuner/files/strategy_file.h"

namespace gradtune::test {

namespace fs = std::filesystem;

// A phase of a test, in its own processes.
inline void run_phase(const std::string& phase, int size, const std::function<void(const Rank&)>& body) {
  run_ranks(size, body, {.phase = phase, .time_limit_s = 280});
}

class Checkpoint : public testing::Test {
 protected:
  std::string path(const std::string& name) const { return folder_.path(name); }

 private:
  const TempFolder folder_;
};

class DrivenClock final : public core::Clock {
 public:
  int64_t now_ns() const override { return now_ns_; }
  void advance_ms(double ms) { now_ns_ += static_cast<int64_t>(ms * 1e6); }

 private:
  std::atomic<int64_t> now_ns_ = 1;
};

// The time of a step: every strategy has its own time, the same in every run, with some noise.
inline double step_ms(int64_t step, const std::string& strategy) {
  core::Hasher hasher, noise;
  hasher.add(strategy);
  noise.add(static_cast<uint64_t>(step));
  return 60 + static_cast<double>(hasher.value() % 64) + static_cast<double>(noise.value() % 100) * 0.01;
}

// Model and optimizer as saved in `folder` after this many steps and, on request, gradtune's state.
struct From {
  std::string folder;
  int64_t step = 0;
  bool checkpoint = true;
};

// A job as a user writes it: model, optimizer, and gradtune's state.
class Training {
 public:
  Training(const Rank& rank, c10::intrusive_ptr<c10d::ProcessGroup> group, const Options& options,
           const From& from = {})
      : rank_(rank),
        model_(make_mlp(1)),
        sgd_(model_->parameters(), torch::optim::SGDOptions(0.05).momentum(0.9)),
        step_(from.step) {
    if (!from.folder.empty()) {
      torch::load(model_, from.folder + "/model.pt");
      torch::load(sgd_, from.folder + "/sgd.pt");
      log_ = tuner::read_file(from.folder + "/log", 1 << 24).value();
    }
    auto clock = std::make_unique<DrivenClock>();
    clock_ = clock.get();
    session_ = std::make_unique<Session>(trained_by({&sgd_}, *model_), group, quiet(options), std::move(clock));
    if (from.folder.empty() || !from.checkpoint) return;
    session_->load_checkpoint(from.folder);
    EXPECT_EQ(session_->progress().step, step_);
  }

  void step() {
    const std::string strategy = session_->describe_in_force();
    session_->zero_grad();
    loss_of(model_, make_data(rank_.rank, step_)).backward();
    clock_->advance_ms(step_ms(step_, strategy));
    session_->step(nullptr);
    log_ += std::to_string(step_) + " " + std::to_string(session_->progress().epoch) + " " + strategy + "\n";
    ++step_;
  }

  void save(const std::string& folder) {
    session_->save_checkpoint(folder);
    if (rank_.rank > 0) return;
    torch::save(model_, folder + "/model.pt");
    torch::save(sgd_, folder + "/sgd.pt");
    std::ofstream(folder + "/log") << log_;
  }
  torch::Tensor parameters() const {
    return torch::nn::utils::parameters_to_vector(model_->parameters()).detach().clone();
  }
  const std::string& log() const { return log_; }
  Session& session() { return *session_; }

 private:
  const Rank rank_;
  torch::nn::Sequential model_;
  torch::optim::SGD sgd_;
  DrivenClock* clock_;
  std::unique_ptr<Session> session_;
  int64_t step_;
  std::string log_;  // of every step: epoch and strategy
};

inline core::GradientTable table_of_model() {
  auto model = make_mlp(1);
  torch::optim::SGD sgd(model->parameters(), 0.1);
  Console console;
  Warnings warnings(console, 0);
  return Gradients(ModuleModel(*model, true), &sgd, warnings).table();
}

// A file with buckets that alternate between these programs; its tensors are in the order of the table.
inline void write_strategy(const std::string& file, int size, const core::GradientTable& table,
                           const std::vector<std::string>& programs) {
  if (is_rank()) return;  // it exists already
  const core::TraitsTable known = compress::known_traits();
  core::Strategy strategy = core::uniform(core::cut(table, 4 << 10, 8 << 10, false), core::plain_all_reduce(), 2);
  for (size_t b = 0; b < strategy.buckets.size(); ++b) {
    strategy.buckets[b].option = core::parse_option(programs[b % programs.size()], known).value();
  }
  core::set_default_flow(strategy);
  const auto text =
      tuner::to_json(tuner::strategy_file(table, size, core::needed_fidelity(strategy, known), "given", strategy));
  ASSERT_TRUE(tuner::write_file_atomically(file, text).ok());
}

inline Options pinned(const std::string& strategy) {
  return {.fidelity = "lossy", .strategy = strategy, .tuning_budget = 0};
}

inline tuner::Manifest manifest_in(const std::string& folder) {
  return tuner::parse_manifest(tuner::read_file(folder + "/checkpoint.json", 1 << 20).value()).value();
}

constexpr const char* kGather = ": encode@device all_gather decode@device";
constexpr const char* kPowerSgd =
    "powersgd:2: encode@device all_reduce decode@device encode@device.1 all_reduce decode@device.1";

}  // namespace gradtune::test
