// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// Tests late updates in real jobs of two ranks: for any program, parameters are those of plain training, bit by bit.
// OVERLAP_JOBS and OVERLAP_STEPS ask for more, OVERLAP_SEED for one job.
#include <gmock/gmock.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/variable.h>
#include <torch/torch.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <optional>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "engine/compress/compressor.h"
#include "tests/hooks/fuzz/random_strategy.h"
#include "tests/hooks/jobs.h"
#include "tests/hooks/overlap/overlap_run.h"
#include "tests/hooks/ranks.h"
#include "tests/temp_folder.h"
#include "tuner/files/strategy_file.h"

namespace gradtune::test {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

int wanted(const char* variable, int otherwise) {
  const char* const value = std::getenv(variable);
  return value != nullptr ? std::atoi(value) : otherwise;
}

void meet(c10d::ProcessGroup& group) {
  std::vector<torch::Tensor> one{torch::ones({1})};
  group.allreduce(one)->wait();
}

// A bucket for each tensor, all due at the next forward pass except that of `early`.
void write_late_strategy(const torch::nn::Module& module, int ranks, const std::string& file,
                         const std::string& early = "") {
  core::GradientTable table;
  for (const auto& item : module.named_parameters()) {
    table.tensors.push_back(
        {.name = item.key(), .shape = item.value().sizes().vec(), .numel = item.value().numel(), .dtype = {}});
  }
  std::ranges::reverse(table.tensors);
  std::vector<std::vector<core::Slice>> slices;
  for (const core::TensorInfo& tensor : table.tensors) {
    slices.push_back({{static_cast<int32_t>(slices.size()), 0, tensor.numel}});
  }
  const core::Option option = core::parse_option("all_reduce", compress::known_traits()).value();
  core::Strategy strategy = core::uniform(std::move(slices), option, 2);
  for (size_t t = 0; t < table.tensors.size(); ++t) {
    if (table.tensors[t].name != early) strategy.buckets[t].due = core::Due::forward;
  }
  tuner::write_file_atomically(
      file, tuner::to_json(tuner::strategy_file(table, ranks, core::Fidelity::exact, "late", strategy)))
      .value();
}

// Pinned, with late buckets, at fidelity exact; with a seed, the strategy is random. Rank 0 writes the file.
Options late_options(const Rank& rank, const torch::nn::Module& module, c10d::ProcessGroup& group,
                     std::optional<uint64_t> seed = {}) {
  const std::string file = TempFolder().path("strategy.json");
  if (rank.rank == 0 && seed) {
    write_random_strategy({.late = true}, rank.size, *seed, module, file);
  } else if (rank.rank == 0) {
    write_late_strategy(module, rank.size, file);
  }
  meet(group);
  return quiet({.fidelity = "exact", .strategy = file, .tuning_budget = 0, .host_threads = 1, .forward_overlap = true});
}

class WrappedTrainer final : public OverlapTrainer {
 public:
  WrappedTrainer(const Rank& rank, OverlapModel& model, torch::optim::Optimizer& inner,
                 const c10::intrusive_ptr<c10d::ProcessGroup>& group, const Options& options)
      : rank_(rank), model_(model), inner_(inner), group_(group), options_(options) {
    optimizer_.emplace(wrap(inner_, model_, group_, options_));
  }

  void pass(int step, int index, bool synced) override {
    std::optional<Optimizer::NoSync> guard;
    if (!synced) guard = optimizer_->no_sync();
    model_.loss({rank_.rank, step, index}).backward();
  }
  void zero_grad() override { optimizer_->zero_grad(); }
  void step(const std::function<void()>& closure) override {
    if (!closure) return optimizer_->step();
    optimizer_->step([&] {
      closure();
      return torch::Tensor();
    });
  }
  void synchronize() override { optimizer_->synchronize(); }
  // In turn: saved, saved and loaded again, the same for the optimizer's state, wrapped again, wrapped anew after
  // the former wrap has ended.
  void checkpoint() override {
    const std::string folder = TempFolder().path("checkpoint");
    switch (checkpoints_++ % 5) {
      case 0: return optimizer_->save_checkpoint(folder);
      case 1: optimizer_->save_checkpoint(folder); return optimizer_->load_checkpoint(folder);
      case 2: {
        std::stringstream state;
        torch::serialize::OutputArchive saved;
        optimizer_->save(saved);
        saved.save_to(state);
        torch::serialize::InputArchive loaded;
        loaded.load_from(state);
        return optimizer_->load(loaded);
      }
      case 3: *optimizer_ = wrap(inner_, model_, group_, options_); return;
      default: optimizer_.reset(); optimizer_.emplace(wrap(inner_, model_, group_, options_));
    }
  }

  Optimizer& optimizer() { return *optimizer_; }

 private:
  const Rank rank_;
  OverlapModel& model_;
  torch::optim::Optimizer& inner_;
  const c10::intrusive_ptr<c10d::ProcessGroup> group_;
  const Options options_;
  std::optional<Optimizer> optimizer_;
  int checkpoints_ = 0;
};

// Runs it with and without late updates; returns the number of late updates.
int64_t compare(const OverlapPlan& plan, const Rank& rank, const c10::intrusive_ptr<c10d::ProcessGroup>& group,
                std::optional<uint64_t> strategy = {}, int64_t tuning_budget = 0) {
  const auto model = make_overlap_model(plan);
  const auto inner = make_overlap_optimizer(plan, model->parameters());
  Options options = late_options(rank, *model, *group, strategy);
  options.tuning_budget = tuning_budget;
  WrappedTrainer trainer(rank, *model, *inner, group, options);
  const Moments found = run_overlap(plan, rank.rank, *model, *inner, trainer);
  const std::string difference = test::difference(found, run_plain(plan, rank.size));
  if (!difference.empty()) ADD_FAILURE() << difference << ", " << to_text(plan);
  return trainer.optimizer().progress().late_updates;
}

// Ordinary training, with accumulation, evaluation and changed rates now and then.
OverlapPlan ordinary(OverlapPlan::Model model, OverlapPlan::Optim optim, int passes) {
  OverlapPlan plan{.seed = 17, .model = model, .optim = optim, .groups = passes > 1};
  plan.steps.resize(static_cast<size_t>(wanted("OVERLAP_STEPS", 24)));
  for (size_t s = 0; s < plan.steps.size(); ++s) {
    plan.steps[s].passes = passes;
    plan.steps[s].change_rate = s % 10 == 3;
    if (s % 50 == 17) plan.steps[s].evaluate = OverlapStep::Evaluate::no_grad;
    plan.steps[s].checkpoint = s % 400 == 300;
  }
  return plan;
}

// Every model with one optimizer, or with each of them if many steps are requested.
TEST(Overlap, ComesToTheBitsOfPlainTraining) {
  run_ranks(2,
            [](const Rank& rank) {
              auto group = make_group();
              const bool all = std::getenv("OVERLAP_STEPS") != nullptr;
              for (int m = 0; m < static_cast<int>(OverlapPlan::Model::count); ++m) {
                for (int o = 0; o < static_cast<int>(OverlapPlan::Optim::count); ++o) {
                  if (!all && o != m) continue;
                  const auto model = static_cast<OverlapPlan::Model>(m);
                  const auto optim = static_cast<OverlapPlan::Optim>(o);
                  for (const int passes : {1, 4}) {
                    if (!all && passes != (m % 2 == 0 ? 1 : 4)) continue;
                    EXPECT_GT(compare(ordinary(model, optim, passes), rank, group), 0) << m << " " << o;
                  }
                }
              }
            },
            {.time_limit_s = 3000});
}

// A tuner races the strategy with late buckets against the baseline, over a slow link.
TEST(Overlap, ComesToThoseBitsWhereStrategiesSwitch) {
  run_ranks(2,
            [](const Rank& rank) {
              auto group = make_group();
              for (const auto model : {OverlapPlan::Model::images, OverlapPlan::Model::lstm}) {
                OverlapPlan plan = ordinary(model, OverlapPlan::Optim::momentum, 1);
                plan.steps.resize(std::max<size_t>(plan.steps.size(), 60));
                compare(plan, rank, group, /*strategy=*/{}, /*tuning_budget=*/200);
              }
            },
            {.time_limit_s = 600, .environment = {{"GRADTUNE_PACING_MBIT", "20"}}});
}

TEST(Overlap, ComesToThoseBitsWhateverAProgramDoes) {
  run_ranks(2,
            [](const Rank& rank) {
              auto group = make_group();
              const int jobs = wanted("OVERLAP_JOBS", 6), only = wanted("OVERLAP_SEED", -1);
              int64_t late = 0;
              for (int job = only < 0 ? 0 : only; job < (only < 0 ? jobs : only + 1); ++job) {
                late += compare(draw_overlap(static_cast<uint64_t>(job), 24, /*all=*/true), rank, group,
                                static_cast<uint64_t>(job), job % 4 == 3 ? 60 : 0);
                if (testing::Test::HasFailure()) break;
              }
              EXPECT_GT(late, 0);
              std::printf("late updates: %ld\n", static_cast<long>(late));
            },
            {.time_limit_s = 3000});
}

// --- what no operator shows ------------------------------------------------------------------------------------------

// A part of the graph that no operator made; its forward pass reads the weight by its address.
struct HiddenProduct final : torch::autograd::Node {
  torch::autograd::variable_list apply(torch::autograd::variable_list&& gradients) override {
    return {(gradients[0] * x).sum(0)};
  }
  torch::Tensor x;

  static torch::Tensor forward(const torch::Tensor& x, const torch::Tensor& weight) {
    torch::Tensor y = x * torch::from_blob(weight.data_ptr(), weight.sizes()).clone();
    const auto node = std::make_shared<HiddenProduct>();
    node->x = x;
    node->set_next_edges({torch::autograd::impl::gradient_edge(weight)});
    torch::autograd::create_gradient_edge(y, node);
    return y;
  }
};

struct HidingImpl : torch::nn::Module {
  HidingImpl() { weight = register_parameter("weight", torch::ones({20})); }
  torch::Tensor loss(const torch::Tensor& x, bool hides) {
    return (hides ? HiddenProduct::forward(x, weight) : x * weight).pow(2).sum();
  }
  torch::Tensor weight;
};
TORCH_MODULE(Hiding);

void train_hiding(const Rank& rank, bool synchronizes) {
  auto group = make_group();
  Hiding model, plain;
  torch::optim::SGD sgd(model->parameters(), 0.001), plain_sgd(plain->parameters(), 0.001);
  auto optimizer = wrap(sgd, *model, group, late_options(rank, *model, *group));
  for (int step = 0; step < 20; ++step) {
    optimizer.zero_grad();
    if (synchronizes) optimizer.synchronize();
    model->loss(make_data(0, step).inputs, /*hides=*/step > 10).backward();
    optimizer.step();
  }
  optimizer.synchronize();
  EXPECT_GT(optimizer.progress().late_updates, 0);
  for (int step = 0; step < 20; ++step) {
    plain_sgd.zero_grad();
    plain->loss(make_data(0, step).inputs, false).backward();
    plain_sgd.step();
  }
  EXPECT_TRUE(torch::equal(model->weight, plain->weight));
}

TEST(Overlap, AGradientOfAStaleWeightIsAnError) {
  const auto ends = start_ranks(2, [](const Rank& rank) {
    const std::string message = message_of([&] { train_hiding(rank, false); });
    std::printf("%s\n", message.c_str());
  });
  for (const RankEnd& end : ends) {
    EXPECT_THAT(end.output, HasSubstr("the forward pass read parameter weight before its update of the last step"));
  }
}

TEST(Overlap, WhatNoOperatorShowsIsRightAfterSynchronize) {
  run_ranks(2, [](const Rank& rank) { train_hiding(rank, true); });
}

// Two updates of one forward pass: the second pass uses the graph of the first one, whose reads were in time.
struct PlaneImpl : torch::nn::Module {
  PlaneImpl() {
    weight = register_parameter("weight", torch::ones({20}));
    shift = register_parameter("shift", torch::zeros({20}));
  }
  torch::Tensor loss(const torch::Tensor& x) { return (x * weight + shift).pow(2).sum(); }
  torch::Tensor weight, shift;
};
TORCH_MODULE(Plane);

template <class Optim>
void train_twice_a_graph(PlaneImpl& model, Optim& optimizer, bool zeroes) {
  for (int step = 0; step < 20; ++step) {
    optimizer.zero_grad();
    const torch::Tensor loss = model.loss(make_data(0, step).inputs);
    loss.backward({}, /*keep_graph=*/true);
    optimizer.step();
    if (step <= 10) continue;
    if (zeroes) optimizer.zero_grad();
    loss.backward();
    optimizer.step();
  }
}

TEST(Overlap, APassThroughAGraphThatWasKeptIsNoStaleRead) {
  run_ranks(2, [](const Rank& rank) {
    auto group = make_group();
    for (const bool zeroes : {true, false}) {
      Plane model, plain;
      torch::optim::SGD sgd(model->parameters(), 0.001), plain_sgd(plain->parameters(), 0.001);
      auto optimizer = wrap(sgd, *model, group, late_options(rank, *model, *group));
      train_twice_a_graph(*model, optimizer, zeroes);
      optimizer.synchronize();
      EXPECT_GT(optimizer.progress().late_updates, 0);
      train_twice_a_graph(*plain, plain_sgd, zeroes);
      EXPECT_TRUE(torch::equal(model->weight, plain->weight)) << zeroes;
      EXPECT_TRUE(torch::equal(model->shift, plain->shift)) << zeroes;
    }
  });
}

struct WordsImpl : torch::nn::Module {
  WordsImpl() {
    words = register_module("words", torch::nn::Embedding(torch::nn::EmbeddingOptions(40, 8).sparse(true)));
    out = register_module("out", torch::nn::Linear(8, 5));
  }
  torch::Tensor loss(const torch::Tensor& text, const torch::Tensor& classes) {
    return torch::nn::functional::cross_entropy(out->forward(words->forward(text).mean(1)), classes);
  }
  torch::nn::Embedding words{nullptr};
  torch::nn::Linear out{nullptr};
};
TORCH_MODULE(Words);

TEST(Overlap, SparseGradientsAreNeverLate) {
  run_ranks(2, [](const Rank& rank) {
    auto group = make_group();
    const std::string file = TempFolder().path("words.json");
    if (rank.rank == 0) write_late_strategy(*Words(), rank.size, file, "words.weight");
    meet(*group);
    const auto train = [&](bool overlaps) {
      torch::manual_seed(7);
      Words model;
      torch::optim::SGD sgd(model->parameters(), 0.1);
      auto optimizer =
          wrap(sgd, *model, group,
               quiet({.fidelity = "exact", .strategy = file, .tuning_budget = 0, .forward_overlap = overlaps}));
      torch::manual_seed(rank.rank);
      const auto step = [&] {
        optimizer.zero_grad();
        model->loss(torch::randint(0, 40, {6, 3}), torch::randint(0, 5, {6})).backward();
        EXPECT_TRUE(model->words->weight.grad().is_sparse());
        optimizer.step();
      };
      for (int number = 0; number < 12; ++number) step();
      optimizer.synchronize();
      const int64_t late = optimizer.progress().late_updates;
      step();
      optimizer.synchronize();
      EXPECT_EQ(optimizer.progress().late_updates - late, overlaps ? 2 : 0);  // of the linear layer
      std::vector<torch::Tensor> parameters;
      for (const torch::Tensor& p : model->parameters()) parameters.push_back(p.detach().clone());
      return parameters;
    };
    EXPECT_EQ(difference({train(true)}, {train(false)}), "");
  });
}

TEST(Overlap, ALateBucketOfSparseGradientsIsAnError) {
  run_ranks(2, [](const Rank& rank) {
    auto group = make_group();
    Words model;
    torch::optim::SGD sgd(model->parameters(), 0.1);
    auto optimizer = wrap(sgd, *model, group, late_options(rank, *model, *group));
    EXPECT_THAT(message_of([&] {
                  for (int step = 0; step < 3; ++step) {
                    model->loss(torch::randint(0, 40, {6, 3}), torch::randint(0, 5, {6})).backward();
                    optimizer.step();
                  }
                }),
                HasSubstr("the bucket of words.weight, whose gradients are sparse, is due at the next forward pass"));
  });
}

TEST(Overlap, TheEndOfAWrapDoesWhatIsToCome) {
  run_ranks(2, [](const Rank& rank) {
    auto group = make_group();
    OverlapPlan plan = ordinary(OverlapPlan::Model::transformer, OverlapPlan::Optim::adam, 1);
    const auto model = make_overlap_model(plan);
    const auto inner = make_overlap_optimizer(plan, model->parameters());
    std::optional<WrappedTrainer> trainer;
    trainer.emplace(rank, *model, *inner, group, late_options(rank, *model, *group));
    for (int step = 0; step < 12; ++step) {
      trainer->zero_grad();
      trainer->pass(step, 0, true);
      trainer->step(nullptr);
    }
    trainer.reset();
    plan.steps.assign(12, OverlapStep());
    std::vector<torch::Tensor> raw;
    for (const torch::Tensor& p : model->parameters()) raw.push_back(torch::from_blob(p.data_ptr(), p.sizes()).clone());
    EXPECT_EQ(difference({raw}, run_plain(plan, 2)), "");
  });
}

// --- when it is off --------------------------------------------------------------------------------------------------

// Trains a while, then runs `step` instead of an ordinary step.
std::string outputs_of(
    const std::function<void(Optimizer&, OverlapModel&, const std::function<torch::Tensor()>&)>& step) {
  std::string output;
  const auto body = [&](const Rank& rank) {
    auto group = make_group();
    const OverlapPlan plan = ordinary(OverlapPlan::Model::images, OverlapPlan::Optim::momentum, 1);
    const auto model = make_overlap_model(plan);
    const auto inner = make_overlap_optimizer(plan, model->parameters());
    auto optimizer = wrap(*inner, *model, group, late_options(rank, *model, *group));
    int number = 0;
    const auto backward = [&] {
      optimizer.zero_grad();
      torch::Tensor loss = model->loss({rank.rank, number++, 0});
      loss.backward();
      return loss;
    };
    for (int s = 0; s < 12; ++s) {
      backward();
      optimizer.step();
    }
    optimizer.synchronize();
    const int64_t late = optimizer.progress().late_updates;
    EXPECT_GT(late, 0);
    step(optimizer, *model, backward);
    for (int s = 0; s < 3; ++s) {
      backward();
      optimizer.step();
    }
    optimizer.synchronize();
    std::printf("late after that: %ld\n", static_cast<long>(optimizer.progress().late_updates - late));
  };
  for (const RankEnd& end : start_ranks(2, body)) {
    EXPECT_EQ(end.exit_code, 0) << end.output;
    output += end.output;
  }
  return output;
}

TEST(Overlap, IsOffWhereGradientsAreUsedBeforeTheStep) {
  const std::string output = outputs_of([](Optimizer& optimizer, OverlapModel& model, const auto& backward) {
    backward();
    torch::nn::utils::clip_grad_norm_(model.parameters(), 1.0);
    optimizer.step();
  });
  EXPECT_THAT(output, AllOf(HasSubstr("forward_overlap is off for this job: the gradient of"),
                            HasSubstr("is used between backward() and step()"), HasSubstr("late after that: 0")));
}

TEST(Overlap, IsOffWhereTheLossIsScaled) {
  const std::string output = outputs_of([](Optimizer& optimizer, OverlapModel& model, const auto& backward) {
    backward();
    const torch::NoGradGuard no_grad;
    for (const torch::Tensor& p : model.parameters()) {
      if (p.grad().defined()) p.grad().div_(1024);
    }
    optimizer.step();
  });
  EXPECT_THAT(output, AllOf(HasSubstr("is used between backward() and step()"), HasSubstr("late after that: 0")));
}

TEST(Overlap, IsOffWithAClosure) {
  const std::string output =
      outputs_of([](Optimizer& optimizer, OverlapModel&, const auto& backward) { optimizer.step(backward); });
  EXPECT_THAT(output, AllOf(HasSubstr("forward_overlap is off for this job: a step can not be done in parts"),
                            HasSubstr("late after that: 0")));
}

TEST(Overlap, StaysOnInOrdinarySteps) {
  const std::string output = outputs_of([](Optimizer& optimizer, OverlapModel& model, const auto& backward) {
    backward();
    optimizer.step();
    double sum = 0;  // after the step, gradients can be read for statistics
    for (const torch::Tensor& p : model.parameters()) sum += p.grad().defined() ? p.grad().sum().item<double>() : 0;
    EXPECT_TRUE(std::isfinite(sum));
  });
  EXPECT_THAT(output, AllOf(Not(HasSubstr("forward_overlap is off")), Not(HasSubstr("late after that: 0\n"))));
}

class OfAUser final : public torch::optim::SGD {
 public:
  using SGD::SGD;
};

TEST(Overlap, IsOffForOptimizersThatAreNotKnown) {
  const auto ends = start_ranks(2, [](const Rank& rank) {
    auto group = make_group();
    auto model = make_mlp(1);
    OfAUser sgd(model->parameters(), torch::optim::SGDOptions(0.1));
    auto optimizer = wrap(sgd, *model, group, late_options(rank, *model, *group));
    for (int step = 0; step < 10; ++step) {
      optimizer.zero_grad();
      loss_of(model, make_data(rank.rank, step)).backward();
      optimizer.step();
    }
    EXPECT_EQ(optimizer.progress().late_updates, 0);
  });
  for (const RankEnd& end : ends) {
    EXPECT_EQ(end.exit_code, 0) << end.output;
    EXPECT_THAT(end.output, HasSubstr("forward_overlap is off for this job: a step can not be done in parts: the "
                                      "optimizer's class is not known"));
  }
}

// A file with late buckets works in either case.
TEST(Overlap, IsOffByDefault) {
  run_ranks(2, [](const Rank& rank) {
    auto group = make_group();
    auto model = make_mlp(1);
    torch::optim::SGD sgd(model->parameters(), 0.1);
    Options options = late_options(rank, *model, *group);
    options.forward_overlap.reset();
    auto optimizer = wrap(sgd, *model, group, options);
    for (int step = 0; step < 10; ++step) {
      optimizer.zero_grad();
      loss_of(model, make_data(rank.rank, step)).backward();
      torch::Tensor gradient = model->parameters()[0].grad().clone();
      EXPECT_EQ(difference_from_rank0(gradient, *group), 0);
      optimizer.step();
    }
    EXPECT_EQ(optimizer.progress().late_updates, 0);
    for (const torch::Tensor& p : model->parameters()) EXPECT_EQ(difference_from_rank0(p, *group), 0);
  });
}

}  // namespace
}  // namespace gradtune::test
