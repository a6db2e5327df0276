// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
#include "tests/hooks/fuzz/random_model.h"

#include <algorithm>

#include "engine/core/rng.h"

namespace gradtune::test {
namespace {

constexpr int64_t kInputs = 12, kIds = 9, kClasses = 5;

uint64_t mixed(uint64_t seed, const Pass& pass) {
  core::Rng rng(seed);
  for (const int part : {pass.rank, pass.step, pass.index}) rng = core::Rng(rng.next() + static_cast<uint64_t>(part));
  return rng.next();
}

torch::ScalarType type_of(core::DType dtype) {
  if (dtype == core::DType::bf16) return torch::kBFloat16;
  return dtype == core::DType::f16 ? torch::kHalf : torch::kFloat;
}

// Repeats or cuts off columns to the given number.
torch::Tensor fit(const torch::Tensor& x, int64_t width) {
  if (x.size(1) == width) return x;
  return x.repeat({1, (width + x.size(1) - 1) / x.size(1)}).narrow(1, 0, width);
}

// Random values, rounded to the dtype, in the given memory layout.
torch::Tensor random_weight(const std::vector<int64_t>& shape, const BlockPlan& plan) {
  const torch::ScalarType type = type_of(plan.dtype);
  torch::Tensor weight = (0.3 * torch::randn(shape)).to(type);
  switch (plan.layout) {
    case BlockPlan::Layout::plain: return weight;
    case BlockPlan::Layout::transposed: return shape.size() == 2 ? weight.t().contiguous().t() : weight;
    case BlockPlan::Layout::channels_last:
      return shape.size() == 4 ? weight.contiguous(torch::MemoryFormat::ChannelsLast) : weight;
    case BlockPlan::Layout::gaps: break;
  }
  if (shape.size() != 2) return weight;
  torch::Tensor part = torch::zeros({shape[0], 2 * shape[1]}, type).narrow(1, 0, shape[1]);
  part.copy_(weight);
  return part;
}

}  // namespace

Batch make_batch(uint64_t seed, int rank, int step, int pass) {
  const uint64_t number = mixed(seed, {rank, step, pass});
  torch::manual_seed(number);
  const auto rows = static_cast<int64_t>(4 + number % 3);
  return {torch::randn({rows, kInputs}), torch::randint(0, kIds, {rows}), torch::randint(0, kClasses, {rows})};
}

RandomModelImpl::RandomModelImpl(const ModelPlan& plan, uint64_t seed, uint64_t values)
    : seed_(seed), has_penalty_(plan.penalty) {
  torch::manual_seed(values);
  int64_t width = kInputs;
  for (size_t b = 0; b < plan.blocks.size(); ++b) {
    add_block(plan.blocks[b], "b" + std::to_string(b) + "_", width);
    if (plan.blocks[b].kind <= BlockPlan::Kind::convolution) width = plan.blocks[b].width;
  }
  head_ = register_parameter("head", random_weight({kClasses, width}, {}));
  if (plan.buffers) add_buffers(static_cast<float>(values % 5));
  if (plan.hooks) blocks_[0].weight.register_hook([](const torch::Tensor& gradient) { return 0.5 * gradient; });
}

void RandomModelImpl::add_block(const BlockPlan& plan, const std::string& name, int64_t width) {
  using Kind = BlockPlan::Kind;
  Block block{.plan = plan, .weight = {}, .bias = {}};
  std::vector<int64_t> shape = plan.shape;
  if (plan.kind == Kind::linear) shape = {plan.width, width};
  if (plan.kind == Kind::tied) shape = {plan.width, plan.width};
  if (plan.kind == Kind::convolution) shape = {plan.width / 16, 2, 3, 3};
  if (plan.kind == Kind::embedding) shape = {kIds, plan.width};
  if (plan.kind == Kind::batch_norm) {
    block.norm = register_module(name + "norm", torch::nn::BatchNorm1d(width));
    // Ranks' own values, which wrapping has to replace.
    const torch::NoGradGuard no_grad;
    for (const torch::Tensor& p : block.norm->parameters()) p.add_(0.1 * torch::randn(p.sizes()));
    block.norm->running_mean.uniform_();
  } else {
    block.weight = register_parameter(name + "weight", random_weight(shape, plan), !plan.frozen);
    if (plan.kind == Kind::tied) register_parameter(name + "again", block.weight, !plan.frozen);
    if (plan.kind == Kind::linear && plan.width % 2 == 0) {
      block.bias = register_parameter(name + "bias", random_weight({plan.width}, plan), !plan.frozen);
    }
  }
  blocks_.push_back(std::move(block));
}

void RandomModelImpl::add_buffers(float value) {
  count_ = register_buffer("count", torch::full({}, static_cast<int64_t>(value), torch::kLong));
  flag_ = register_buffer("flag", torch::full({3}, value > 2, torch::kBool));
  mean_ = register_buffer("mean", torch::full({1}, 0.1 * value, torch::kDouble));
  half_ = register_buffer("half", torch::full({5}, value, torch::kHalf));
  none_ = register_buffer("none", torch::empty({0, 2}));
  across_ = register_buffer("across", torch::full({7, 11}, value).t());
}

void RandomModelImpl::add_buffer(const std::string& name, int64_t numel) {
  const auto buffers = named_buffers(/*recurse=*/false);
  if (const torch::Tensor* known = buffers.find(name)) {
    known->set_data(torch::ones({numel}));
  } else {
    register_buffer(name, torch::ones({numel}));
  }
}

bool RandomModelImpl::uses(const BlockPlan& block, size_t index, const Pass& pass) const {
  return !block.some_ranks || (mixed(seed_ + index, pass) >> 33) % 3 > 0;
}

torch::Tensor RandomModelImpl::apply(Block& block, const torch::Tensor& x, const Batch& batch) {
  const BlockPlan& plan = block.plan;
  const torch::ScalarType type = type_of(plan.dtype);
  const torch::Tensor& w = block.weight;
  switch (plan.kind) {
    case BlockPlan::Kind::linear: {
      torch::Tensor y = x.to(type).matmul(w.t());
      if (block.bias.defined()) y = y + block.bias;
      return torch::tanh(y).to(torch::kFloat);
    }
    case BlockPlan::Kind::tied: {
      const torch::Tensor h = torch::tanh(fit(x, plan.width).to(type).matmul(w.t()));
      return torch::tanh(h.matmul(w)).to(torch::kFloat);
    }
    case BlockPlan::Kind::convolution: {
      const torch::Tensor image = fit(x, 32).to(type).reshape({-1, 2, 4, 4});
      return torch::tanh(torch::conv2d(image, w, {}, 1, 1)).flatten(1).to(torch::kFloat);
    }
    case BlockPlan::Kind::batch_norm: return block.norm->forward(x);
    case BlockPlan::Kind::embedding: {
      const torch::Tensor rows = torch::embedding(w, batch.ids, /*padding_idx=*/-1, false, plan.sparse);
      return x + fit(rows.to(torch::kFloat), x.size(1));
    }
    case BlockPlan::Kind::odd: {
      if (w.numel() == 0) return x + w.sum().to(torch::kFloat);
      return x + fit(w.reshape({1, -1}).to(torch::kFloat), x.size(1));
    }
    case BlockPlan::Kind::unused: return x;
  }
  return x;
}

torch::Tensor RandomModelImpl::loss(const Pass& pass, const Between& between) {
  const Batch batch = make_batch(seed_, pass.rank, pass.step, pass.index);
  torch::Tensor x = batch.inputs;
  for (size_t b = 0; b < blocks_.size(); ++b) {
    const bool gives_width = blocks_[b].plan.kind <= BlockPlan::Kind::convolution;
    if (uses(blocks_[b].plan, b, pass)) {
      x = apply(blocks_[b], x, batch);
    } else if (gives_width) {
      x = fit(x, blocks_[b].plan.width);
    }
    if (b == blocks_.size() / 2 && between) x = between(x);
  }
  if (mean_.defined()) {
    x = x - 0.1 * mean_.to(torch::kFloat);
    if (is_training()) change_buffers(x);
  }
  const torch::Tensor loss = torch::nn::functional::cross_entropy(x.matmul(head_.t()), batch.targets);
  return has_penalty_ && is_training() ? with_penalty(loss) : loss;
}

torch::Tensor RandomModelImpl::with_penalty(const torch::Tensor& loss) const {
  std::vector<torch::Tensor> weights{head_};
  if (blocks_[0].weight.requires_grad()) weights.push_back(blocks_[0].weight);
  torch::Tensor sum = loss;
  for (const torch::Tensor& gradient : torch::autograd::grad({loss}, weights, {}, true, /*create_graph=*/true, true)) {
    if (gradient.defined()) sum = sum + 0.01 * gradient.to(torch::kFloat).pow(2).sum();
  }
  return sum;
}

void RandomModelImpl::change_buffers(const torch::Tensor& x) {
  const torch::NoGradGuard no_grad;
  const torch::Tensor mean = x.detach().mean();
  count_ += 1;
  flag_.logical_not_();
  mean_.mul_(0.9).add_(0.1 * mean.to(torch::kDouble));
  half_.copy_(0.5 * half_ + mean.to(torch::kHalf));
  across_.select(0, 3).add_(mean);
}

RandomModel make_model(const JobPlan& plan, uint64_t values) { return RandomModel(plan.model, plan.seed, values); }

std::unique_ptr<torch::optim::Optimizer> make_optimizer(const OptimizerPlan& plan,
                                                        const std::vector<torch::Tensor>& parameters) {
  using namespace torch::optim;
  const size_t kept = parameters.size() - std::min(parameters.size() - 1, static_cast<size_t>(plan.left_out));
  const auto begin = parameters.begin(), end = begin + static_cast<std::ptrdiff_t>(kept);
  const auto middle = plan.groups ? begin + static_cast<std::ptrdiff_t>(kept / 2) : begin;
  std::vector<OptimizerParamGroup> groups;
  if (middle != begin) groups.emplace_back(std::vector<torch::Tensor>(begin, middle));
  groups.emplace_back(std::vector<torch::Tensor>(middle, end));
  switch (plan.kind) {
    case OptimizerPlan::Kind::sgd:
      return std::make_unique<SGD>(groups,
                                   SGDOptions(plan.rate).momentum(plan.momentum).weight_decay(plan.weight_decay));
    case OptimizerPlan::Kind::adam:
      return std::make_unique<Adam>(groups, AdamOptions(plan.rate).weight_decay(plan.weight_decay));
    case OptimizerPlan::Kind::adamw: return std::make_unique<AdamW>(groups, AdamWOptions(plan.rate));
    case OptimizerPlan::Kind::rmsprop:
      return std::make_unique<RMSprop>(groups, RMSpropOptions(plan.rate).momentum(plan.momentum));
    case OptimizerPlan::Kind::adagrad: return std::make_unique<Adagrad>(groups, AdagradOptions(plan.rate));
  }
  return nullptr;
}

std::vector<torch::Tensor> trained(const torch::nn::Module& module) {
  std::vector<torch::Tensor> tensors;
  for (const torch::Tensor& parameter : module.parameters()) {
    const bool known = std::ranges::any_of(tensors, [&](const torch::Tensor& t) { return t.is_same(parameter); });
    if (parameter.requires_grad() && !known) tensors.push_back(parameter);
  }
  return tensors;
}

}  // namespace gradtune::test
