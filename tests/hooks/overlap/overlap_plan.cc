// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
#include "tests/hooks/overlap/overlap_plan.h"

#include <ATen/CPUGeneratorImpl.h>

#include <algorithm>
#include <stdexcept>

#include "engine/core/rng.h"

namespace gradtune::test {
namespace {

constexpr int64_t kWords = 11, kWidth = 16;

// Has its own generator, as threads draw at the same time.
struct Batch {
  torch::Tensor images, words, next, classes;
};

uint64_t mixed(uint64_t seed, const OverlapModel::Pass& pass) {
  core::Rng rng(seed);
  for (const int part : {pass.rank, pass.step, pass.index}) rng = core::Rng(rng.next() + static_cast<uint64_t>(part));
  return rng.next();
}

Batch make_batch(uint64_t seed, const OverlapModel::Pass& pass) {
  const torch::Generator generator = at::make_generator<at::CPUGeneratorImpl>(mixed(seed, pass));
  return {torch::randn({3, 1, 8, 8}, generator), torch::randint(0, kWords, {5, 2}, generator, torch::kLong),
          torch::randint(0, kWords, {5, 2}, generator, torch::kLong),
          torch::randint(0, 5, {3}, generator, torch::kLong)};
}

torch::Tensor word_loss(const torch::Tensor& scores, const torch::Tensor& words) {
  return torch::nn::functional::cross_entropy(scores.flatten(0, 1), words.flatten());
}

void fail_if(bool throws) {
  if (throws) throw std::runtime_error("of the user, in forward");
}

class Images final : public OverlapModel {
 public:
  explicit Images(uint64_t seed) : seed_(seed) {
    first = register_module("first", torch::nn::Conv2d(torch::nn::Conv2dOptions(1, 4, 3).padding(1)));
    second = register_module("second", torch::nn::Conv2d(torch::nn::Conv2dOptions(4, 4, 3).padding(1)));
    sometimes = register_module("sometimes", torch::nn::Linear(64, 64));
    hidden = register_module("hidden", torch::nn::Linear(64, kWidth));
    out = register_module("out", torch::nn::Linear(kWidth, 5));
  }
  torch::Tensor loss(const Pass& pass, bool throws) override {
    const Batch batch = make_batch(seed_, pass);
    torch::Tensor x = torch::relu(first->forward(batch.images));
    x = torch::max_pool2d(torch::relu(second->forward(x)), 2).flatten(1);
    fail_if(throws);
    // In the first steps every rank uses it in every pass, then now and then.
    if (pass.step < 8 || mixed(seed_ + 1, pass) % 2 == 0) x = torch::relu(sometimes->forward(x));
    return torch::nn::functional::cross_entropy(out->forward(torch::relu(hidden->forward(x))), batch.classes);
  }

 private:
  const uint64_t seed_;
  torch::nn::Conv2d first{nullptr}, second{nullptr};
  torch::nn::Linear sometimes{nullptr}, hidden{nullptr}, out{nullptr};
};

class Transformer final : public OverlapModel {
 public:
  explicit Transformer(uint64_t seed) : seed_(seed) {
    words = register_module("words", torch::nn::Embedding(kWords, kWidth));
    layer = register_module("layer",
                            torch::nn::TransformerEncoderLayer(
                                torch::nn::TransformerEncoderLayerOptions(kWidth, 2).dim_feedforward(32).dropout(0)));
    norm = register_module("norm", torch::nn::LayerNorm(torch::nn::LayerNormOptions({kWidth})));
  }
  torch::Tensor loss(const Pass& pass, bool throws) override {
    const Batch batch = make_batch(seed_, pass);
    torch::Tensor x = layer->forward(words->forward(batch.words));
    fail_if(throws);
    return word_loss(norm->forward(x).matmul(words->weight.t()), batch.next);
  }

 private:
  const uint64_t seed_;
  torch::nn::Embedding words{nullptr};
  torch::nn::TransformerEncoderLayer layer{nullptr};
  torch::nn::LayerNorm norm{nullptr};
};

class LanguageModel final : public OverlapModel {
 public:
  explicit LanguageModel(uint64_t seed) : seed_(seed) {
    words = register_module("words", torch::nn::Embedding(kWords, kWidth));
    memory = register_module("memory", torch::nn::LSTM(torch::nn::LSTMOptions(kWidth, kWidth).num_layers(2)));
    out = register_module("out", torch::nn::Linear(kWidth, kWords));
  }
  torch::Tensor loss(const Pass& pass, bool throws) override {
    const Batch batch = make_batch(seed_, pass);
    const torch::Tensor x = std::get<0>(memory->forward(words->forward(batch.words)));
    fail_if(throws);
    return word_loss(out->forward(x), batch.next);
  }

 private:
  const uint64_t seed_;
  torch::nn::Embedding words{nullptr};
  torch::nn::LSTM memory{nullptr};
  torch::nn::Linear out{nullptr};
};

class Shared final : public OverlapModel {
 public:
  explicit Shared(uint64_t seed) : seed_(seed) {
    in = register_module("in", torch::nn::Linear(64, kWidth));
    twice = register_module("twice", torch::nn::Linear(kWidth, kWidth));
    between = register_module("between", torch::nn::Linear(kWidth, kWidth));
    never = register_module("never", torch::nn::Linear(kWidth, kWidth));
    out = register_module("out", torch::nn::Linear(kWidth, 5));
  }
  torch::Tensor loss(const Pass& pass, bool throws) override {
    const Batch batch = make_batch(seed_, pass);
    torch::Tensor x = torch::tanh(in->forward(batch.images.flatten(1)));
    x = torch::tanh(between->forward(torch::tanh(twice->forward(x))));
    fail_if(throws);
    x = torch::tanh(twice->forward(x)).matmul(between->weight.t());
    return torch::nn::functional::cross_entropy(out->forward(x), batch.classes);
  }

 private:
  const uint64_t seed_;
  torch::nn::Linear in{nullptr}, twice{nullptr}, between{nullptr}, never{nullptr}, out{nullptr};
};

}  // namespace

std::string to_text(const OverlapPlan& plan) {
  std::string text = "seed " + std::to_string(plan.seed) + ", model " + std::to_string(static_cast<int>(plan.model)) +
                     ", optimizer " + std::to_string(static_cast<int>(plan.optim)) + (plan.groups ? ", groups" : "");
  for (size_t s = 0; s < plan.steps.size(); ++s) {
    const OverlapStep& step = plan.steps[s];
    if (step == OverlapStep()) continue;
    text += "\n  step " + std::to_string(s) + ": zero " + std::to_string(static_cast<int>(step.zero)) + ", passes " +
            std::to_string(step.passes) + ", evaluate " + std::to_string(static_cast<int>(step.evaluate));
    for (const auto& [name, is] : std::vector<std::pair<const char*, bool>>{{"change_rate", step.change_rate},
                                                                            {"edit", step.edit},
                                                                            {"use_gradients", step.use_gradients},
                                                                            {"synchronize", step.synchronize},
                                                                            {"interrupt", step.interrupt},
                                                                            {"again", step.again},
                                                                            {"clip", step.clip},
                                                                            {"replace", step.replace},
                                                                            {"skip", step.skip},
                                                                            {"closure", step.closure},
                                                                            {"read", step.read},
                                                                            {"switches", step.switches},
                                                                            {"checkpoint", step.checkpoint}}) {
      if (is) text += std::string(", ") + name;
    }
  }
  return text;
}

OverlapPlan draw_overlap(uint64_t seed, int steps, bool all) {
  core::Rng rng = core::Rng(seed).fork("overlap");
  const auto below = [&](int bound) { return static_cast<int>(rng.below(static_cast<uint64_t>(bound))); };
  const auto chance = [&](double probability) { return rng.uniform() < probability; };
  OverlapPlan plan{.seed = seed};
  plan.model = static_cast<OverlapPlan::Model>(below(static_cast<int>(OverlapPlan::Model::count)));
  plan.optim = static_cast<OverlapPlan::Optim>(below(static_cast<int>(OverlapPlan::Optim::count)));
  plan.groups = chance(0.3);
  const bool accumulates = chance(0.4), turns_off = all && chance(0.3);
  plan.steps.resize(static_cast<size_t>(steps));
  for (size_t s = 0; s < plan.steps.size(); ++s) {
    OverlapStep& step = plan.steps[s];
    if (chance(0.15)) step.zero = static_cast<OverlapStep::Zero>(1 + below(3));
    if (accumulates && chance(0.6)) step.passes = 1 + below(4);
    if (chance(0.1)) step.evaluate = static_cast<OverlapStep::Evaluate>(1 + below(2));
    step.change_rate = chance(0.2);
    step.edit = chance(0.05);
    step.use_gradients = chance(0.05);
    step.synchronize = chance(0.1);
    step.interrupt = chance(0.05);
    step.again = chance(0.03);
    step.replace = chance(0.05);
    step.read = chance(0.1);
    step.switches = chance(0.05);
    step.checkpoint = chance(0.03);
    // Operations that need gradients early come late in the job, as otherwise overlap is never on.
    if (s < plan.steps.size() * 2 / 3 || !turns_off) continue;
    step.skip = chance(0.1);
    step.clip = chance(0.2);
    step.closure = chance(0.2) && !step.skip;
  }
  return plan;
}

std::shared_ptr<OverlapModel> make_overlap_model(const OverlapPlan& plan) {
  std::shared_ptr<OverlapModel> model;
  switch (plan.model) {
    case OverlapPlan::Model::images: model = std::make_shared<Images>(plan.seed); break;
    case OverlapPlan::Model::transformer: model = std::make_shared<Transformer>(plan.seed); break;
    case OverlapPlan::Model::lstm: model = std::make_shared<LanguageModel>(plan.seed); break;
    case OverlapPlan::Model::shared: model = std::make_shared<Shared>(plan.seed); break;
    case OverlapPlan::Model::count: break;
  }
  const torch::NoGradGuard no_grad;
  torch::Generator generator = at::make_generator<at::CPUGeneratorImpl>(plan.seed);
  for (torch::Tensor& parameter : model->parameters()) parameter.normal_(0, 0.2, generator);
  return model;
}

std::unique_ptr<torch::optim::Optimizer> make_overlap_optimizer(const OverlapPlan& plan,
                                                                const std::vector<torch::Tensor>& parameters) {
  using namespace torch::optim;
  const auto begin = parameters.begin(), end = parameters.end();
  const auto middle = plan.groups ? begin + static_cast<std::ptrdiff_t>(parameters.size() / 2) : begin;
  std::vector<OptimizerParamGroup> groups;
  if (middle != begin) groups.emplace_back(std::vector<torch::Tensor>(begin, middle));
  groups.emplace_back(std::vector<torch::Tensor>(middle, end));
  std::unique_ptr<Optimizer> optimizer;
  switch (plan.optim) {
    case OverlapPlan::Optim::sgd: optimizer = std::make_unique<SGD>(groups, SGDOptions(0.05).weight_decay(0.01)); break;
    case OverlapPlan::Optim::momentum: optimizer = std::make_unique<SGD>(groups, SGDOptions(0.05).momentum(0.9)); break;
    case OverlapPlan::Optim::adam: optimizer = std::make_unique<Adam>(groups, AdamOptions(0.005)); break;
    case OverlapPlan::Optim::adamw: optimizer = std::make_unique<AdamW>(groups, AdamWOptions(0.005)); break;
    case OverlapPlan::Optim::count: break;
  }
  if (plan.groups) optimizer->param_groups()[0].options().set_lr(0.02);
  return optimizer;
}

}  // namespace gradtune::test
