// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// A rank of the benchmark "guard": trains a small model with a strategy, by a schedule, and from some step on with a
// fault. GRADTUNE_ variables set the journal's place and gradtune's options.
#include <torch/torch.h>

#include <CLI/CLI.hpp>
#include <cmath>
#include <cstdio>
#include <memory>
#include <numbers>
#include <string>
#include <vector>

#include "examples/train_fashion_mnist/data.h"
#include "examples/train_fashion_mnist/models.h"
#include "examples/train_text/recurrent.h"
#include "examples/train_text/text.h"
#include "examples/train_text/transformer.h"
#include "gradtune/gradtune.h"
#include "tests/bench/support/planted_faults.h"

namespace gradtune::bench {
namespace {

struct Flags {
  std::string task = "resnet", schedule = "constant", fault, export_file, text;
  int64_t steps = 2'000, fault_step = 1'000, seed = 0;
  int fault_rank = -1;  // -1: all
};

// A model and its data: the loss of the next batch, with the given number of samples.
class Task {
 public:
  Task(const Flags& flags, int rank, int size) : rank_(rank), size_(size), seed_(flags.seed) {
    if (is_image(flags.task)) {
      data_ = load_fashion_mnist(kFashionMnistFolder, "train");
      model_ = flags.task == "mlp" ? multilayer() : make_model(flags.task);
    } else {
      text_ = load_text(flags.text);
      if (flags.task == "text") {
        model_->push_back(Transformer(TransformerShape{.width = 64, .layers = 1}));
      } else {
        model_->push_back(Recurrent(RecurrentShape{.inputs = 32, .width = 96}));
      }
    }
  }
  static bool is_image(const std::string& task) { return task == "resnet" || task == "mlp" || task == "vgg"; }

  torch::nn::Sequential& model() { return model_; }

  torch::Tensor loss(int64_t batch) {
    namespace F = torch::nn::functional;
    if (batch != batch_) {  // a new batch size starts another stream of batches
      batch_ = batch;
      if (text_.train.defined()) {
        texts_ = std::make_unique<TextBatches>(text_.train, batch, kLength, rank_, seed_ + batch);
      } else {
        images_ = std::make_unique<Batches>(data_, batch, rank_, size_, seed_ + batch);
      }
    }
    if (images_) {
      const Batch next = images_->next();
      return F::cross_entropy(model_->forward(next.images), next.labels);
    }
    const TextBatch next = texts_->next();
    return F::cross_entropy(model_->forward(next.inputs).view({-1, kSymbols}), next.targets.view({-1}));
  }

 private:
  static torch::nn::Sequential multilayer() {
    return torch::nn::Sequential(torch::nn::Flatten(), torch::nn::Linear(784, 128), torch::nn::ReLU(),
                                 torch::nn::Linear(128, 128), torch::nn::ReLU(), torch::nn::Linear(128, 10));
  }

  const int rank_, size_;
  const int64_t seed_;
  torch::nn::Sequential model_;
  Dataset data_;
  Text text_;
  int64_t batch_ = 0;
  std::unique_ptr<Batches> images_;
  std::unique_ptr<TextBatches> texts_;
};

// The learning rate as a share of the highest, and samples of a rank in a step.
struct Plan {
  double rate = 1;
  int64_t batch = 4;
};
Plan plan_of(const Flags& flags, int64_t step) {
  const double done = static_cast<double>(step) / static_cast<double>(flags.steps);
  const int64_t batch = flags.task == "vgg" ? 64 : Task::is_image(flags.task) ? 8 : 4;
  const double warm_up = std::min(1.0, static_cast<double>(step + 1) / 50);
  if (flags.schedule == "constant") return {warm_up, batch};
  if (flags.schedule == "cosine") {
    const double share = std::min(1.0, static_cast<double>(step + 1) / (0.1 * static_cast<double>(flags.steps)));
    return {share * (1 + std::cos(std::numbers::pi * done)) / 2, batch};
  }
  if (flags.schedule == "drop") return {done < 0.5 ? warm_up : 0.1, batch};
  if (flags.schedule == "batch") return {warm_up, done < 0.5 ? batch : 4 * batch};
  throw std::invalid_argument("schedule \"" + flags.schedule + "\" is none of constant, cosine, drop, batch");
}

void set_rate(torch::optim::Optimizer& optimizer, double rate) {
  for (auto& group : optimizer.param_groups()) group.options().set_lr(rate);
}

void train(const Flags& flags) {
  const auto group = init_process_group();
  const bool is_chosen = flags.fault_rank < 0 || flags.fault_rank == group->getRank();
  torch::manual_seed(flags.seed);
  Task task(flags, group->getRank(), group->getSize());
  std::unique_ptr<torch::optim::Optimizer> plain;
  double rate = 2e-3;
  if (Task::is_image(flags.task)) {
    rate = 0.02;
    plain =
        std::make_unique<torch::optim::SGD>(task.model()->parameters(), torch::optim::SGDOptions(rate).momentum(0.9));
  } else {
    plain = std::make_unique<torch::optim::AdamW>(task.model()->parameters(),
                                                  torch::optim::AdamWOptions(rate).weight_decay(0.01));
  }
  Optimizer optimizer = wrap(*plain, *task.model(), group);
  double loss_of_last = 0;
  for (int64_t step = 0; step < flags.steps; ++step) {
    const bool fails = !flags.fault.empty() && step >= flags.fault_step;
    if (step == flags.fault_step && fails && is_chosen && flags.fault != "rate") plant(flags.fault);
    const Plan plan = plan_of(flags, step);
    set_rate(*plain, rate * plan.rate * (fails && flags.fault == "rate" ? 30 : 1));
    optimizer.zero_grad();
    const torch::Tensor loss = task.loss(plan.batch);
    loss.backward();
    optimizer.step();
    loss_of_last = step == 0 ? loss.item<double>() : 0.98 * loss_of_last + 0.02 * loss.item<double>();
  }
  if (!flags.export_file.empty()) optimizer.export_strategy(flags.export_file);
  if (group->getRank() == 0) std::printf("%.4f\n", loss_of_last);
}

}  // namespace
}  // namespace gradtune::bench

int main(int argc, char** argv) {
  gradtune::bench::Flags flags;
  CLI::App app{"A rank of the benchmark \"guard\"."};
  app.add_option("--task", flags.task, "resnet, mlp, vgg, text or lstm");
  app.add_option("--schedule", flags.schedule, "constant, cosine, drop or batch");
  app.add_option("--fault", flags.fault, "decoder, residual, scale or rate");
  app.add_option("--fault-step", flags.fault_step, "");
  app.add_option("--fault-rank", flags.fault_rank, "-1: all");
  app.add_option("--steps", flags.steps, "");
  app.add_option("--seed", flags.seed, "");
  app.add_option("--text", flags.text, "");
  app.add_option("--export", flags.export_file, "");
  CLI11_PARSE(app, argc, argv);
  torch::set_num_threads(1);
  try {
    gradtune::bench::train(flags);
  } catch (const std::exception& caught) {
    std::fprintf(stderr, "guard_rank: %s\n", caught.what());
    return 1;
  }
  return 0;
}
