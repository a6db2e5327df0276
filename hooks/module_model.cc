// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
#include "hooks/module_model.h"

#include <ATen/MemoryOverlap.h>
#include <torch/types.h>

#include <algorithm>
#include <memory>
#include <tuple>
#include <unordered_set>

#include "engine/core/hash.h"

namespace gradtune {
namespace {

using torch::nn::Module;
using Tensors = torch::OrderedDict<std::string, torch::Tensor>;
using Children = torch::OrderedDict<std::string, std::shared_ptr<Module>>;

// What a module has registered. Its own accessors copy lists and names, which is too slow for every step, and the
// members are private; naming them in an explicit instantiation is the one place where the language allows that.
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

core::Error invalid(const std::string& message) { return {core::Error::Code::invalid, "gradtune: " + message}; }

void check_sendable(const std::string& what, const torch::Tensor& tensor) {
  const auto refuse = [&](const std::string& why) { throw core::Exception(invalid(what + " " + why)); };
  if (tensor.layout() != torch::kStrided || tensor.is_nested() || tensor.is_quantized()) {
    refuse("is not a dense tensor (sparse, sharded, nested or quantized ones are not served)");
  }
  if (!tensor.device().is_cpu()) {
    refuse("is on " + tensor.device().str() + "; this build serves models on the CPU");
  }
  if (at::has_internal_overlap(tensor.unsafeGetTensorImpl()) == at::MemOverlap::Yes) {
    refuse("has elements that share memory (expand()?), so that it can not be written; register a clone() of it");
  }
}

// Each tensor once.
std::vector<NamedTensor> list(const Tensors& named) {
  std::vector<NamedTensor> tensors;
  std::unordered_set<const void*> seen;
  for (const auto& item : named) {
    const torch::Tensor& tensor = item.value();
    if (tensor.defined() && seen.insert(tensor.unsafeGetTensorImpl()).second) tensors.push_back({item.key(), tensor});
  }
  return tensors;
}

// The first that only one of the lists has.
const NamedTensor* first_alone(const std::vector<NamedTensor>& tensors, const std::vector<NamedTensor>& others) {
  std::unordered_set<const void*> of_others;
  for (const NamedTensor& other : others) of_others.insert(other.tensor.unsafeGetTensorImpl());
  const auto found = std::ranges::find_if(
      tensors, [&](const NamedTensor& each) { return !of_others.contains(each.tensor.unsafeGetTensorImpl()); });
  return found == tensors.end() ? nullptr : &*found;
}

}  // namespace

ModuleModel::ModuleModel(Module& module, bool with_buffers)
    : module_(module), with_buffers_(with_buffers), parameters_(list(module.named_parameters())) {
  for (const NamedTensor& parameter : parameters_) {
    check_sendable("parameter " + parameter.name, parameter.tensor);
    kept_.push_back({parameter.tensor.storage().unsafeGetStorageImpl(), parameter.tensor.requires_grad()});
  }
  if (with_buffers) buffers_ = list(module.named_buffers());
  for (const NamedTensor& buffer : buffers_) check_sendable("buffer " + buffer.name, buffer.tensor);
  registered_ = registered(module, with_buffers);
}

core::Status ModuleModel::check_unchanged() const {
  for (size_t p = 0; p < parameters_.size(); ++p) {
    const auto& [name, tensor] = parameters_[p];
    if (tensor.storage().unsafeGetStorageImpl() != kept_[p].storage) {
      return invalid("parameter " + name +
                     " was moved, converted or replaced since wrap; wrap the optimizer after the "
                     "model is where it is trained");
    }
    if (tensor.requires_grad() && !kept_[p].trainable) {
      return invalid("parameter " + name +
                     " was added, replaced or unfrozen since wrap, and would differ between "
                     "ranks; wrap again after that");
    }
  }
  if (registered(module_, with_buffers_) == registered_) return {};
  const std::vector<NamedTensor> parameters = list(module_.named_parameters());
  const std::vector<NamedTensor> buffers = with_buffers_ ? list(module_.named_buffers()) : std::vector<NamedTensor>();
  for (const auto& [what, now, then] :
       {std::tuple("parameter ", &parameters, &parameters_), std::tuple("buffer ", &buffers, &buffers_)}) {
    if (const NamedTensor* added = first_alone(*now, *then)) {
      return invalid(what + added->name +
                     " was added, replaced or unfrozen since wrap, and would differ between ranks; "
                     "wrap again after that");
    }
    if (const NamedTensor* gone = first_alone(*then, *now)) {
      return invalid(what + gone->name + " was removed from the module since wrap; wrap again after that");
    }
  }
  return {};  // the same tensors in another order
}

void ModuleModel::drop_gradients() const {
  for (size_t p = 0; p < parameters_.size(); ++p) {
    if (kept_[p].trainable) parameters_[p].tensor.mutable_grad().reset();  // also what was frozen since
  }
}

uint64_t ModuleModel::buffer_layout() {
  size_t at = 0;
  bool changed = false;
  const auto compare = [&](int64_t value) {
    if (at == sizes_.size()) sizes_.push_back(-1);
    changed = changed || sizes_[at] != value;
    sizes_[at++] = value;
  };
  for (const NamedTensor& buffer : buffers_) {
    compare(static_cast<int64_t>(buffer.tensor.scalar_type()));
    compare(buffer.tensor.dim());
    for (const int64_t size : buffer.tensor.sizes()) compare(size);
  }
  changed = changed || at != sizes_.size();
  if (!changed) return buffer_layout_;
  sizes_.resize(at);
  core::Hasher hasher;
  for (const int64_t size : sizes_) hasher.add(static_cast<uint64_t>(size));
  return buffer_layout_ = hasher.value();
}

}  // namespace gradtune
