// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
#include "hooks/optimizer_checks.h"

#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>
#include <torch/optim/lbfgs.h>
#include <torch/optim/rmsprop.h>
#include <torch/optim/sgd.h>

#include <algorithm>
#include <string>

#include "engine/compress/compressor.h"

namespace gradtune {
namespace {

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

torch::optim::Optimizer& check_optimizer(torch::optim::Optimizer& optimizer) {
  if (dynamic_cast<torch::optim::LBFGS*>(&optimizer) != nullptr) {
    throw core::Exception({core::Error::Code::invalid,
                           "gradtune: LBFGS evaluates its closure several times and decides by the loss of one rank; "
                           "allowed are optimizers that use the gradients of one backward pass"});
  }
  return optimizer;
}

void check_momentum(const torch::optim::Optimizer& optimizer, std::span<const core::CompressorSpec> codecs) {
  const std::vector<core::CompressorTraits> known = compress::known_traits();
  const auto replaces = std::find_if(codecs.begin(), codecs.end(), [&](const core::CompressorSpec& codec) {
    const core::CompressorTraits* const traits = core::traits_of(codec, known);
    return traits != nullptr && traits->replaces_momentum;
  });
  if (replaces == codecs.end()) return;
  const std::string momentum = momentum_of(optimizer);
  if (momentum.empty()) return;
  throw core::Exception(
      {core::Error::Code::invalid, "gradtune: compressor \"" + core::to_string(*replaces) +
                                       "\" keeps the momentum of gradients itself, and the optimizer has " + momentum +
                                       " as well; allowed is an optimizer without momentum, or another compressor"});
}

}  // namespace gradtune
