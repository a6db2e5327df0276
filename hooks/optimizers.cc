// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
#include "hooks/optimizers.h"

#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>
#include <torch/optim/lbfgs.h>
#include <torch/optim/rmsprop.h>
#include <torch/optim/sgd.h>
#include <torch/serialize/input-archive.h>
#include <torch/serialize/output-archive.h>

#include <algorithm>
#include <unordered_set>
#include <utility>

#include "engine/compress/compressor.h"

namespace gradtune {
namespace {

[[noreturn]] void refuse(const std::string& message) {
  throw core::Exception({core::Error::Code::invalid, "gradtune: " + message});
}

// Calls body(parameter) for each, and body(null) behind each group.
template <typename Body>
void for_parameters(const std::vector<torch::optim::Optimizer*>& optimizers, Body body) {
  for (const torch::optim::Optimizer* optimizer : optimizers) {
    for (const auto& group : optimizer->param_groups()) {
      for (const torch::Tensor& parameter : group.params()) body(&parameter);
      body(nullptr);
    }
  }
}

// Of the first parameter group that has any; empty: none has, or the optimizer is not known to have any.
std::string momentum_of(const torch::optim::Optimizer& optimizer) {
  using namespace torch::optim;
  const auto first = [&](const char* name, auto get) -> std::string {
    for (const OptimizerParamGroup& group : optimizer.param_groups()) {
      const double value = get(group.options());
      if (value != 0) return std::string(name) + " " + c10::str(value);
    }
    return "";
  };
  const auto beta1 = [&](const auto& options) { return std::get<0>(options.betas()); };
  if (dynamic_cast<const SGD*>(&optimizer) != nullptr) {
    return first("momentum", [](const auto& o) { return static_cast<const SGDOptions&>(o).momentum(); });
  }
  if (dynamic_cast<const RMSprop*>(&optimizer) != nullptr) {
    return first("momentum", [](const auto& o) { return static_cast<const RMSpropOptions&>(o).momentum(); });
  }
  if (dynamic_cast<const Adam*>(&optimizer) != nullptr) {
    return first("beta1", [&](const auto& o) { return beta1(static_cast<const AdamOptions&>(o)); });
  }
  if (dynamic_cast<const AdamW*>(&optimizer) != nullptr) {
    return first("beta1", [&](const auto& o) { return beta1(static_cast<const AdamWOptions&>(o)); });
  }
  return "";
}

}  // namespace

Optimizers::Optimizers(std::vector<torch::optim::Optimizer*> optimizers, const Model& model)
    : optimizers_(std::move(optimizers)) {
  if (optimizers_.empty()) refuse("wrap needs at least one optimizer");
  for (size_t i = 0; i < optimizers_.size(); ++i) {
    if (optimizers_[i] == nullptr) refuse("optimizer " + std::to_string(i) + " is null");
    if (std::find(optimizers_.begin(), optimizers_.begin() + static_cast<std::ptrdiff_t>(i), optimizers_[i]) !=
        optimizers_.begin() + static_cast<std::ptrdiff_t>(i)) {
      refuse("optimizer " + std::to_string(i) + " is in the list twice");
    }
    if (dynamic_cast<torch::optim::LBFGS*>(optimizers_[i]) != nullptr) {
      refuse(
          "LBFGS evaluates its closure several times and decides by the loss of one rank; allowed are optimizers that "
          "use the gradients of one backward pass");
    }
  }
  std::unordered_set<const void*> of_model, seen;
  for (const NamedTensor& parameter : model.parameters()) of_model.insert(parameter.tensor.unsafeGetTensorImpl());
  for_parameters(optimizers_, [&](const torch::Tensor* parameter) {
    parameters_.push_back(parameter == nullptr ? nullptr : parameter->unsafeGetTensorImpl());
    if (parameter == nullptr) return;
    if (!seen.insert(parameters_.back()).second) {
      refuse("a parameter of shape " + c10::str(parameter->sizes()) + " is in the optimizer twice, or in two of them");
    }
    if (parameter->requires_grad() && !of_model.contains(parameters_.back())) {
      refuse("the optimizer has a parameter of shape " + c10::str(parameter->sizes()) +
             " that is not in the module: it would differ between ranks");
    }
  });
}

Optimizers::Places Optimizers::places() const {
  Places places;
  for (size_t i = 0; i < optimizers_.size(); ++i) {
    const auto& groups = optimizers_[i]->param_groups();
    for (size_t g = 0; g < groups.size(); ++g) {
      for (const torch::Tensor& parameter : groups[g].params()) places[parameter.unsafeGetTensorImpl()] = {i, g};
    }
  }
  return places;
}

core::Status Optimizers::check_unchanged() const {
  size_t at = 0;
  const torch::Tensor* other = nullptr;
  bool changed = false;
  for_parameters(optimizers_, [&](const torch::Tensor* parameter) {
    const void* const now = parameter == nullptr ? nullptr : parameter->unsafeGetTensorImpl();
    if (!changed && (at == parameters_.size() || parameters_[at] != now)) {
      changed = true;
      other = parameter;
    }
    ++at;
  });
  if (!changed && at == parameters_.size()) return {};
  return core::Error{core::Error::Code::invalid,
                     "gradtune: parameters or groups of the optimizer were added, removed or replaced since wrap" +
                         (other == nullptr ? std::string() : ", first one of shape " + c10::str(other->sizes())) +
                         ": they would differ between ranks; wrap again after that"};
}

void Optimizers::check_momentum(std::span<const core::CompressorSpec> codecs) const {
  const core::TraitsTable known = compress::known_traits();
  const auto replaces = std::find_if(codecs.begin(), codecs.end(), [&](const core::CompressorSpec& codec) {
    const core::CompressorTraits* const traits = core::traits_of(codec, known);
    return traits != nullptr && traits->replaces_momentum;
  });
  if (replaces == codecs.end()) return;
  for (const torch::optim::Optimizer* optimizer : optimizers_) {
    const std::string momentum = momentum_of(*optimizer);
    if (momentum.empty()) continue;
    refuse("compressor \"" + core::to_string(*replaces) +
           "\" keeps the momentum of gradients itself, and the optimizer has " + momentum +
           " as well; allowed is an optimizer without momentum, or another compressor");
  }
}

void Optimizers::step() {
  for (torch::optim::Optimizer* optimizer : optimizers_) optimizer->step();
}

torch::optim::Optimizer& Optimizers::at(size_t index) const {
  if (index < optimizers_.size()) return *optimizers_[index];
  refuse("there is no optimizer " + std::to_string(index) + "; " + std::to_string(optimizers_.size()) +
         " were wrapped, the first is 0");
}

void Optimizers::save(torch::serialize::OutputArchive& archive) const {
  if (optimizers_.size() == 1) return optimizers_.front()->save(archive);
  for (size_t i = 0; i < optimizers_.size(); ++i) {
    torch::serialize::OutputArchive own(archive.compilation_unit());
    optimizers_[i]->save(own);
    archive.write(std::to_string(i), own);
  }
}

void Optimizers::load(torch::serialize::InputArchive& archive) {
  if (optimizers_.size() == 1) return optimizers_.front()->load(archive);
  for (size_t i = 0; i < optimizers_.size(); ++i) {
    torch::serialize::InputArchive own;
    archive.read(std::to_string(i), own);
    optimizers_[i]->load(own);
  }
}

}  // namespace gradtune
