// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
#include "hooks/named_tensors.h"

#include <ATen/MemoryOverlap.h>

#include <algorithm>
#include <unordered_set>
#include <utility>

#include "engine/core/hash.h"
#include "hooks/refusal.h"

namespace gradtune {
namespace {

// The first tensor that is in `tensors` only.
const NamedTensor* first_alone(const std::vector<NamedTensor>& tensors, const std::vector<NamedTensor>& others) {
  std::unordered_set<const void*> of_others;
  for (const NamedTensor& other : others) of_others.insert(other.tensor.unsafeGetTensorImpl());
  const auto found = std::ranges::find_if(
      tensors, [&](const NamedTensor& each) { return !of_others.contains(each.tensor.unsafeGetTensorImpl()); });
  return found == tensors.end() ? nullptr : &*found;
}

// `name` is the tensor's name, or that of a module around it.
bool is_of(std::string_view tensor, std::string_view name) {
  return tensor.starts_with(name) && (tensor.size() == name.size() || tensor[name.size()] == '.');
}

bool is_ignored(std::string_view tensor, const std::vector<std::string>& ignored) {
  return std::ranges::any_of(ignored, [&](const std::string& name) { return is_of(tensor, name); });
}

}  // namespace

void check_sendable(std::string_view what, const std::vector<NamedTensor>& tensors) {
  for (const auto& [name, tensor] : tensors) {
    const auto refuse_this = [&](const std::string& why) { refuse(std::string(what) + " " + name + " " + why); };
    if (tensor.layout() != torch::kStrided || tensor.is_nested() || tensor.is_quantized()) {
      refuse_this("is not a dense tensor (sparse, sharded, nested or quantized ones are not served)");
    }
    if (tensor.is_meta()) refuse_this("is on meta, where tensors have no memory; wrap after they have values");
    if (at::has_internal_overlap(tensor.unsafeGetTensorImpl()) == at::MemOverlap::Yes) {
      refuse_this(
          "has elements that share memory (expand()?), so that it can not be written; register a clone() of it");
    }
  }
}

c10::Device device_of(const std::vector<NamedTensor>& parameters) {
  const NamedTensor* first = nullptr;
  for (const NamedTensor& each : parameters) {
    if (!each.tensor.requires_grad()) continue;
    if (first == nullptr) first = &each;
    if (each.tensor.device() == first->tensor.device()) continue;
    throw core::Exception(invalid("parameter " + each.name + " is on " + each.tensor.device().str() + ", parameter " +
                                  first->name + " on " + first->tensor.device().str() +
                                  "; all that require gradients have to be on one device of each rank"));
  }
  return first == nullptr ? c10::Device(c10::kCPU) : first->tensor.device();
}

std::vector<NamedTensor> each_once(std::vector<NamedTensor> tensors) {
  std::unordered_set<const void*> seen;
  std::erase_if(tensors, [&](const NamedTensor& each) {
    return !each.tensor.defined() || !seen.insert(each.tensor.unsafeGetTensorImpl()).second;
  });
  return tensors;
}

Shared without_ignored(std::vector<NamedTensor> tensors, const std::vector<std::string>& ignored) {
  std::unordered_set<const void*> own;
  for (const NamedTensor& each : tensors) {
    if (is_ignored(each.name, ignored)) own.insert(each.tensor.unsafeGetTensorImpl());
  }
  Shared all;
  for (NamedTensor& each : each_once(std::move(tensors))) {
    (own.contains(each.tensor.unsafeGetTensorImpl()) ? all.own : all.shared).push_back(std::move(each));
  }
  return all;
}

void check_ignored(const std::vector<std::string>& ignored, const std::vector<NamedTensor>& parameters,
                   const std::vector<NamedTensor>& buffers) {
  for (const std::string& name : ignored) {
    const auto fits = [&](const NamedTensor& each) { return is_of(each.name, name); };
    if (std::ranges::any_of(parameters, fits) || std::ranges::any_of(buffers, fits)) continue;
    refuse("option ignore names \"" + name +
           "\", which is no parameter or buffer, and no module with one; allowed are their names, such as \"" +
           (parameters.empty() ? std::string("0.weight") : parameters.front().name) + "\"");
  }
}

core::Status check_same(std::string_view what, const std::vector<NamedTensor>& then,
                        const std::vector<NamedTensor>& now, std::string_view advice) {
  if (const NamedTensor* added = first_alone(now, then)) {
    return invalid(std::string(what) + " " + added->name +
                   " was added, replaced or unfrozen since wrap, and would differ between ranks; after that, " +
                   std::string(advice));
  }
  if (const NamedTensor* gone = first_alone(then, now)) {
    return invalid(std::string(what) + " " + gone->name + " was removed from the module since wrap; after that, " +
                   std::string(advice));
  }
  return {};
}

core::Status check_frozen(const std::vector<NamedTensor>& parameters, const std::vector<bool>& trainable,
                          std::string_view advice) {
  for (size_t p = 0; p < parameters.size(); ++p) {
    if (trainable[p] || !parameters[p].tensor.requires_grad()) continue;
    return invalid("parameter " + parameters[p].name +
                   " was added, replaced or unfrozen since wrap, and would differ between ranks; after that, " +
                   std::string(advice));
  }
  return {};
}

void drop_gradients(const std::vector<NamedTensor>& parameters, const std::vector<bool>& trainable) {
  for (size_t p = 0; p < parameters.size(); ++p) {
    if (trainable[p]) parameters[p].tensor.mutable_grad().reset();
  }
}

uint64_t LayoutHash::of(const std::vector<NamedTensor>& tensors) {
  size_t at = 0;
  bool changed = false;
  const auto compare = [&](int64_t value) {
    if (at == sizes_.size()) sizes_.push_back(-1);
    changed = changed || sizes_[at] != value;
    sizes_[at++] = value;
  };
  for (const NamedTensor& each : tensors) {
    compare(static_cast<int64_t>(each.tensor.scalar_type()));
    compare(each.tensor.dim());
    for (const int64_t size : each.tensor.sizes()) compare(size);
  }
  changed = changed || at != sizes_.size();
  if (!changed) return hash_;
  sizes_.resize(at);
  core::Hasher hasher;
  for (const int64_t size : sizes_) hasher.add(static_cast<uint64_t>(size));
  return hash_ = hasher.value();
}

}  // namespace gradtune
