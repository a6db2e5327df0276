// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// Tests late updates on ranks that are threads of one process: for any program and strategy, the bits are those of
// the same job without late updates. OVERLAP_JOBS asks for more jobs, OVERLAP_SEED for one.
#include <gtest/gtest.h>
#include <torch/csrc/autograd/engine.h>
#include <torch/torch.h>

#include <algorithm>
#include <cstdlib>
#include <memory>
#include <string>
#include <vector>

#include "engine/compress/compressor.h"
#include "engine/core/clock.h"
#include "hooks/backward_pass.h"
#include "hooks/forward_overlap.h"
#include "hooks/module_model.h"
#include "hooks/optim_stepper.h"
#include "tests/engine/exec/fleet.h"
#include "tests/hooks/overlap/overlap_run.h"
#include "tests/suites/communicator_ranks.h"

namespace gradtune::test {
namespace {

int wanted(const char* variable, int otherwise) {
  const char* const value = std::getenv(variable);
  return value != nullptr ? std::atoi(value) : otherwise;
}

// Has arbitrary options, and most buckets are due at the next forward pass.
core::Strategy random_late_strategy(const core::GradientTable& table, int ranks, uint64_t seed) {
  core::Rng rng(seed);
  const core::TraitsTable known = compress::known_traits();
  std::vector<std::string> options;
  for (const core::Place place : {core::Place::device, core::Place::host}) {
    for (const std::string& option : exec::all_options(place)) {
      const std::vector<core::CompressorSpec> codecs = core::parse_option(option, known).value().codecs;
      const bool is_for_all = std::ranges::all_of(codecs, [&](const core::CompressorSpec& codec) {
        return core::most_ranks(*core::traits_of(codec, known), codec) >= ranks;
      });
      if (is_for_all) options.push_back(option);
    }
  }
  for (int plain = 0; plain < 30; ++plain) options.push_back("all_reduce");
  core::Strategy strategy = exec::random_strategy(table, options, rng);
  for (core::Bucket& bucket : strategy.buckets) {
    if (rng.below(4) == 0) continue;
    bucket.due = core::Due::forward;
    if (!exec::compile(strategy, table, {.size = ranks})) bucket.due = core::Due::backward;
  }
  return strategy;
}

// The work of a session in a step, without tuner and other processes.
class SimulatedTrainer final : public OverlapTrainer {
 public:
  SimulatedTrainer(const OverlapPlan& plan, int rank, exec::RankGroups groups, bool with_overlap)
      : plan_(plan),
        rank_(rank),
        groups_(std::move(groups)),
        module_(make_overlap_model(plan)),
        inner_(make_overlap_optimizer(plan, module_->parameters())),
        warnings_(front_, rank),
        model_(*module_, /*with_buffers=*/false),
        stepper_({inner_.get()}),
        gradients_(model_, stepper_.identity(), warnings_),
        executor_(groups_.view(), clock_, exec::kWithHost,
                  [this](bool finite) {
                    word_ = finite ? 0 : 1;
                    return std::span<double>(&word_, 1);
                  }),
        overlap_(with_overlap, gradients_, stepper_, executor_, clock_, warnings_) {
    executor_.set_gradients(gradients_.table(), gradients_.arenas());
    overlap_.set_tensors();
    pass_.set_tensors(gradients_.table().tensors.size());
    gradients_.set_hooks({.ready = [this](int32_t position) { on_ready(position); },
                          .alarm = [] { return core::Status(); },
                          .compiled = [] {},
                          .finish = [] {}});
    run_next();
  }
  ~SimulatedTrainer() override {
    synchronize();
    executor_.drain().value();
    executor_.stop();
    groups_ = {};
  }

  void pass(int step, int index, bool synced) override {
    is_synced_ = synced;
    module_->loss({rank_, step, index}).backward();
  }
  void zero_grad() override {
    pass_.forget();
    model_.drop_gradients();
  }
  void step(const std::function<void()>& closure) override {
    if (closure) {
      overlap_.turn_off("a closure");
      closure();
    }
    overlap_.update().value();
    pass_.forget();
  }
  void synchronize() override { overlap_.finish().value(); }
  void switch_strategy(int /*number*/) override { switches_ = true; }
  void checkpoint() override { synchronize(); }

  OverlapModel& module() { return *module_; }
  torch::optim::Optimizer& inner() { return *inner_; }
  int64_t late_updates() const { return overlap_.late_updates(); }

 private:
  void on_ready(int32_t position) {
    overlap_.on_gradient(position).value();
    if (!is_synced_) return;
    if (!pass_.is_running()) {
      overlap_.finish().value();
      executor_.drain().value();
      pass_.begin();
      executor_.begin_step().value();
      torch::autograd::Engine::get_default_engine().queue_callback([this] { end_pass(); });
    }
    pass_.ready(position);
    send(position);
  }

  void send(int32_t position) {
    Gradients::Brought brought = gradients_.bring(position);
    if (!executor_.tensor_ready(position, brought.arrived)) gradients_.keep(std::move(brought));
  }

  void end_pass() {
    const auto tensors = static_cast<int32_t>(gradients_.table().tensors.size());
    for (int32_t p = 0; p < tensors; ++p) {
      if (!pass_.is_ready(static_cast<size_t>(p))) send(p);
    }
    executor_.finish_backward().value();
    const bool counts = executor_.conclude(word_ == 0).value();
    const bool may_stay = counts && !switches_;
    overlap_.end_backward(may_stay).value();
    for (int32_t p = 0; p < tensors; ++p) gradients_.give_dense(p);
    gradients_.let_go();
    if (switches_) run_next();
    pass_.end();
  }

  // All ranks do it in the same step.
  void run_next() {
    const int32_t before = slot_;
    slot_ = before == 0 ? 1 : 0;
    const core::Strategy strategy =
        random_late_strategy(gradients_.table(), groups_.seat.size, 100 * plan_.seed + strategies_);
    executor_.prepare(slot_, strategy).value();
    executor_.run(slot_);
    if (before >= 0) executor_.drop(before);
    ++strategies_;
    switches_ = false;
  }

  const OverlapPlan& plan_;
  const int rank_;
  const core::SteadyClock clock_;
  exec::RankGroups groups_;
  const std::shared_ptr<OverlapModel> module_;
  const std::unique_ptr<torch::optim::Optimizer> inner_;
  Console front_;
  Warnings warnings_;
  ModuleModel model_;
  OptimStepper stepper_;
  Gradients gradients_;
  double word_ = 0;
  exec::Executor executor_;
  ForwardOverlap overlap_;
  BackwardPass pass_;
  bool is_synced_ = true, switches_ = false;
  int32_t slot_ = -1;
  uint64_t strategies_ = 0;
};

struct Outcome {
  std::vector<Moments> moments;  // by rank
  int64_t late = 0;
};

Outcome simulate(const OverlapPlan& plan, int ranks, bool with_overlap) {
  Outcome outcome{.moments = std::vector<Moments>(static_cast<size_t>(ranks))};
  std::vector<exec::RankGroups> groups = exec::make_groups(ranks);
  std::vector<int64_t> late(static_cast<size_t>(ranks));
  suites::on_every_rank(ranks, [&](int r) {
    const auto at = static_cast<size_t>(r);
    SimulatedTrainer trainer(plan, r, std::move(groups[at]), with_overlap);
    outcome.moments[at] = run_overlap(plan, r, trainer.module(), trainer.inner(), trainer);
    late[at] = trainer.late_updates();
  });
  for (const int64_t each : late) outcome.late += each;
  return outcome;
}

TEST(SimulatedOverlap, ComesToTheSameBitsWhateverAProgramDoes) {
  torch::set_num_threads(1);
  torch::manual_seed(0);  // makes the generator that all ranks share, before there are several threads
  const int jobs = wanted("OVERLAP_JOBS", 15), only = wanted("OVERLAP_SEED", -1);
  int64_t late = 0;
  for (int job = only < 0 ? 0 : only; job < (only < 0 ? jobs : only + 1) && !HasFailure(); ++job) {
    const OverlapPlan plan = draw_overlap(static_cast<uint64_t>(job), 16, /*all=*/true);
    const int ranks = 2 + job % 3;
    const Outcome with = simulate(plan, ranks, true), without = simulate(plan, ranks, false);
    for (size_t r = 0; r < with.moments.size(); ++r) {
      const std::string difference = test::difference(with.moments[r], without.moments[r]);
      if (!difference.empty()) ADD_FAILURE() << "rank " << r << ": " << difference << ", " << to_text(plan);
    }
    late += with.late;
    EXPECT_EQ(without.late, 0);
  }
  EXPECT_GT(late, 0);
}

}  // namespace
}  // namespace gradtune::test
