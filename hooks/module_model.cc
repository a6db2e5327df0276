// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
#include "hooks/module_model.h"

#include <torch/types.h>

#include <memory>
#include <utility>

namespace gradtune {
namespace {

using torch::nn::Module;
using Tensors = torch::OrderedDict<std::string, torch::Tensor>;
using Children = torch::OrderedDict<std::string, std::shared_ptr<Module>>;

// The tensors that a module has registered. Its own accessors copy lists and names, which is too slow for every
// step, and the members are private. An explicit instantiation may name private members, so they are read through
// one.
Tensors Module::*parameters_member();
Tensors Module::*buffers_member();
Children Module::*children_member();
template <Tensors Module::*Parameters, Tensors Module::*Buffers, Children Module::*Children_>
struct Members {
  friend Tensors Module::*parameters_member() { return Parameters; }
  friend Tensors Module::*buffers_member() { return Buffers; }
  friend Children Module::*children_member() { return Children_; }
};
template struct Members<&Module::parameters_, &Module::buffers_, &Module::children_>;

uint64_t mix(uint64_t hash, const torch::Tensor& tensor) {
  return (hash ^ reinterpret_cast<uintptr_t>(tensor.unsafeGetTensorImpl())) * 0x9e3779b97f4a7c15ULL + (hash >> 29);
}

uint64_t registered(const Module& module, bool with_buffers, uint64_t hash = 0) {
  for (const auto& item : module.*parameters_member()) hash = mix(hash, item.value());
  if (with_buffers) {
    for (const auto& item : module.*buffers_member()) hash = mix(hash, item.value());
  }
  for (const auto& item : module.*children_member()) {
    if (item.value()) hash = registered(*item.value(), with_buffers, hash);
  }
  return hash;
}

std::vector<NamedTensor> list(const Tensors& named) {
  std::vector<NamedTensor> tensors;
  for (const auto& item : named) tensors.push_back({item.key(), item.value()});
  return tensors;
}

constexpr std::string_view kAdvice = "wrap again";

}  // namespace

ModuleModel::ModuleModel(Module& module, bool with_buffers, std::vector<std::string> ignored)
    : module_(module), with_buffers_(with_buffers), ignored_(std::move(ignored)) {
  const std::vector<NamedTensor> all = list(module.named_parameters()), all_buffers = list(module.named_buffers());
  check_ignored(ignored_, all, all_buffers);
  auto [shared, own] = without_ignored(all, ignored_);
  parameters_ = std::move(shared);
  own_ = std::move(own);
  if (with_buffers) buffers_ = without_ignored(all_buffers, ignored_).shared;
  check_sendable("parameter", parameters_);
  check_sendable("buffer", buffers_);
  for (const NamedTensor& parameter : parameters_) trainable_.push_back(parameter.tensor.requires_grad());
  registered_ = registered(module, with_buffers);
}

core::Status ModuleModel::check_unchanged() {
  if (core::Status frozen = check_frozen(parameters_, trainable_, kAdvice); !frozen) return frozen;
  if (registered(module_, with_buffers_) == registered_) return {};
  const auto now = [this](const Tensors& tensors) { return without_ignored(list(tensors), ignored_).shared; };
  if (core::Status same = check_same("parameter", parameters_, now(module_.named_parameters()), kAdvice); !same) {
    return same;
  }
  if (!with_buffers_) return {};
  return check_same("buffer", buffers_, now(module_.named_buffers()), kAdvice);  // in any order
}

void ModuleModel::drop_gradients() const {
  gradtune::drop_gradients(parameters_, trainable_);
  for (const NamedTensor& each : own_) each.tensor.mutable_grad().reset();
}

}  // namespace gradtune
