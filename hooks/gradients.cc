// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
#include "hooks/gradients.h"

#include <torch/csrc/autograd/functions/accumulate_grad.h>
#include <torch/csrc/autograd/utils/lambda_post_hook.h>
#include <torch/csrc/autograd/variable.h>
#include <torch/types.h>
#include <torch/utils.h>

#include <cstring>
#include <unordered_map>
#include <unordered_set>
#include <utility>

namespace gradtune {
namespace {

[[noreturn]] void refuse(const std::string& message) {
  throw core::Exception({core::Error::Code::invalid, "gradtune: " + message});
}

core::DType dtype_of(const torch::Tensor& parameter, const std::string& name) {
  switch (parameter.scalar_type()) {
    case torch::kFloat: return core::DType::f32;
    case torch::kBFloat16: return core::DType::bf16;
    case torch::kHalf: return core::DType::f16;
    default:
      refuse("parameter " + name + " is " + std::string(torch::toString(parameter.scalar_type())) +
             "; gradients may be float32, bfloat16 or float16");
  }
}

void check_parameter(const torch::Tensor& parameter, const std::string& name) {
  if (!parameter.device().is_cpu()) {
    refuse("parameter " + name + " is on " + parameter.device().str() + "; this build serves gradients on the CPU");
  }
  if (parameter.layout() != torch::kStrided)
    refuse("parameter " + name + " is not a dense tensor (sharded or sparse parameters are not served)");
  if (!parameter.is_leaf())
    refuse("parameter " + name + " is the result of an operation; only leaves have gradients of their own");
}

// A gradient should have its parameter's strides where that is dense (channels_last), else be row-major.
std::vector<int64_t> strides_of(const torch::Tensor& parameter) {
  return parameter.is_non_overlapping_and_dense()
             ? parameter.strides().vec()
             : torch::empty_like(parameter, torch::MemoryFormat::Contiguous).strides().vec();
}

}  // namespace

Gradients::Gradients(torch::nn::Module& module, torch::optim::Optimizer& optimizer) : module_(module) {
  std::unordered_map<const void*, std::string> optimized;
  for (const auto& group : optimizer.param_groups()) {
    for (const torch::Tensor& parameter : group.params()) {
      if (!optimized.emplace(parameter.unsafeGetTensorImpl(), "").second) {
        refuse("a parameter of shape " + c10::str(parameter.sizes()) + " is in the optimizer twice");
      }
    }
  }
  std::unordered_set<const void*> storages;
  for (const auto& item : module.named_parameters()) {
    const torch::Tensor& parameter = item.value();
    if (!parameter.defined() || !parameter.requires_grad()) continue;
    check_parameter(parameter, item.key());
    bool seen = false;  // a shared parameter is listed under each of its names
    for (const Parameter& known : parameters_) seen = seen || known.tensor.is_same(parameter);
    if (seen) continue;
    if (!storages.insert(parameter.storage().unsafeGetStorageImpl()).second) {
      refuse("parameter " + item.key() + " shares memory with another one, but is not the same tensor");
    }
    optimized.erase(parameter.unsafeGetTensorImpl());
    known_.insert(parameter.unsafeGetTensorImpl());
    table_.tensors.push_back({.name = item.key(),
                              .shape = parameter.sizes().vec(),
                              .numel = parameter.numel(),
                              .dtype = dtype_of(parameter, item.key())});
    parameters_.push_back(
        {.tensor = parameter, .slot = {}, .storage = parameter.storage().unsafeGetStorageImpl(), .accumulator = {}});
  }
  if (parameters_.empty()) refuse("the module has no parameter that requires a gradient");
  for (const auto& group : optimizer.param_groups()) {
    for (const torch::Tensor& parameter : group.params()) {
      if (parameter.requires_grad() && optimized.contains(parameter.unsafeGetTensorImpl())) {
        refuse("the optimizer has a parameter of shape " + c10::str(parameter.sizes()) +
               " that is not in the module: it would differ between ranks");
      }
    }
  }
  std::reverse(table_.tensors.begin(), table_.tensors.end());
  std::reverse(parameters_.begin(), parameters_.end());
  position_of_.resize(parameters_.size());
  for (size_t p = 0; p < parameters_.size(); ++p) position_of_[p] = static_cast<int32_t>(p);
  allocate();
}

Gradients::~Gradients() {
  for (Parameter& parameter : parameters_) {
    if (parameter.accumulator) parameter.accumulator->del_post_hook(parameter.hook);
  }
}

void Gradients::allocate() {
  arena_numel_ = {};
  for (const core::TensorInfo& tensor : table_.tensors) arena_numel_[static_cast<size_t>(tensor.dtype)] += tensor.numel;
  for (size_t d = 0; d < arenas_.size(); ++d) {
    arenas_[d] = std::make_shared<exec::AlignedBytes>(arena_numel_[d] * bytes_per_element(static_cast<core::DType>(d)));
    if (arenas_[d]->bytes() > 0) std::memset(arenas_[d]->data(), 0, static_cast<size_t>(arenas_[d]->bytes()));
  }
  std::array<int64_t, 3> next{};
  for (size_t p = 0; p < parameters_.size(); ++p) {
    const auto d = static_cast<size_t>(table_.tensors[p].dtype);
    const torch::Tensor& parameter = parameters_[p].tensor;
    // from_blob and not a view of one tensor, so that optimizers may detach_() it.
    parameters_[p].slot = torch::from_blob(
        arenas_[d]->data() + next[d] * bytes_per_element(table_.tensors[p].dtype), parameter.sizes(),
        strides_of(parameter), [arena = arenas_[d]](void*) {}, torch::TensorOptions(parameter.scalar_type()));
    next[d] += parameter.numel();
  }
}

exec::Arenas Gradients::arenas() const {
  exec::Arenas arenas;
  for (size_t d = 0; d < arenas.size(); ++d) arenas[d] = {arenas_[d]->data(), arena_numel_[d]};
  return arenas;
}

void Gradients::lay(const std::vector<int32_t>& order) {
  std::vector<bool> named(parameters_.size());
  for (const int32_t old : order) {
    const bool is_one = old >= 0 && static_cast<size_t>(old) < named.size() && !named[static_cast<size_t>(old)];
    core::check(is_one, "an order names parameters, and none twice");
    named[static_cast<size_t>(old)] = true;
  }
  core::check(order.size() == parameters_.size(), "an order names every parameter");
  const torch::NoGradGuard no_grad;
  std::vector<Parameter> old_parameters = std::move(parameters_);
  const core::GradientTable old_table = std::move(table_);
  std::vector<int32_t> new_position(order.size());
  parameters_.clear();
  table_ = {};
  for (size_t p = 0; p < order.size(); ++p) {
    const auto old = static_cast<size_t>(order[p]);
    new_position[old] = static_cast<int32_t>(p);
    parameters_.push_back(old_parameters[old]);
    table_.tensors.push_back(old_table.tensors[old]);
  }
  for (int32_t& position : position_of_) position = new_position[static_cast<size_t>(position)];
  allocate();
  for (size_t p = 0; p < order.size(); ++p) {
    Parameter& parameter = parameters_[p];
    torch::Tensor& gradient = parameter.tensor.mutable_grad();
    if (gradient.defined() && gradient.data_ptr() == old_parameters[static_cast<size_t>(order[p])].slot.data_ptr()) {
      parameter.slot.copy_(gradient);
      gradient = parameter.slot;
    }
  }
}

void Gradients::on_ready(std::function<void(int32_t)> ready) {
  ready_ = std::move(ready);
  // In the order of registration, as the arena may have been laid before.
  for (size_t i = 0; i < position_of_.size(); ++i) {
    Parameter& parameter = parameters_[static_cast<size_t>(position_of_[i])];
    parameter.accumulator = torch::autograd::impl::grad_accumulator(parameter.tensor);
    parameter.hook = parameter.accumulator->add_post_hook(std::make_unique<torch::autograd::utils::LambdaPostHook>(
        [this, i](const torch::autograd::variable_list& outputs, const torch::autograd::variable_list&) {
          ready_(position_of_[i]);
          return outputs;
        }));
  }
}

bool Gradients::adopt(int32_t position) {
  Parameter& parameter = parameters_[static_cast<size_t>(position)];
  torch::Tensor& gradient = parameter.tensor.mutable_grad();
  const torch::NoGradGuard no_grad;
  if (!gradient.defined()) {
    parameter.slot.zero_();
    gradient = parameter.slot;
    return false;
  }
  if (gradient.is_sparse()) {
    parameter.slot.zero_();
    parameter.slot.add_(gradient);
  } else if (gradient.data_ptr() != parameter.slot.data_ptr() || !gradient.device().is_cpu()) {
    if (gradient.scalar_type() != parameter.tensor.scalar_type() || !gradient.device().is_cpu()) {
      refuse("the gradient of " + table_.tensors[static_cast<size_t>(position)].name + " is " +
             std::string(torch::toString(gradient.scalar_type())) + " on " + gradient.device().str() +
             ", its parameter is " + std::string(torch::toString(parameter.tensor.scalar_type())) + " on the CPU");
    }
    parameter.slot.copy_(gradient);
  } else {
    return true;
  }
  gradient = parameter.slot;
  return true;
}

torch::Tensor Gradients::adopt_later(int32_t position) {
  const Parameter& parameter = parameters_[static_cast<size_t>(position)];
  torch::Tensor& gradient = parameter.tensor.mutable_grad();
  const bool lies_alike =
      gradient.defined() && gradient.layout() == torch::kStrided && gradient.device().is_cpu() &&
      gradient.scalar_type() == parameter.slot.scalar_type() && gradient.sizes() == parameter.slot.sizes() &&
      gradient.strides() == parameter.slot.strides() && gradient.data_ptr() != parameter.slot.data_ptr();
  if (!lies_alike) {
    adopt(position);
    return {};
  }
  return std::exchange(gradient, parameter.slot);
}

void Gradients::forget(int32_t position) { parameters_[static_cast<size_t>(position)].tensor.mutable_grad().reset(); }

void Gradients::drop_all() {
  for (Parameter& parameter : parameters_) parameter.tensor.mutable_grad().reset();
}

void Gradients::check_unchanged() const {
  for (size_t p = 0; p < parameters_.size(); ++p) {
    const torch::Tensor& tensor = parameters_[p].tensor;
    if (tensor.storage().unsafeGetStorageImpl() != parameters_[p].storage) {
      refuse("parameter " + table_.tensors[p].name +
             " was moved, converted or replaced since wrap; wrap the optimizer after the model is where it is trained");
    }
  }
  for (const auto& item : module_.named_parameters()) {
    const torch::Tensor& parameter = item.value();
    if (parameter.defined() && parameter.requires_grad() && !known_.contains(parameter.unsafeGetTensorImpl())) {
      refuse("parameter " + item.key() +
             " was added, replaced or unfrozen since wrap, and would differ between ranks; wrap again after that");
    }
  }
}

}  // namespace gradtune
