// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
#include "hooks/stepper.h"

#include <torch/utils.h>

#include <algorithm>
#include <unordered_set>

#include "engine/compress/compressor.h"
#include "hooks/refusal.h"

namespace gradtune {
void check_parameters(const Stepper& stepper, const Model& model) {
  std::unordered_set<const void*> of_model, seen;
  for (const auto* parameters : {&model.parameters(), &model.own_parameters()}) {
    for (const NamedTensor& parameter : *parameters) of_model.insert(parameter.tensor.unsafeGetTensorImpl());
  }
  for (const Stepper::Group& group : stepper.groups()) {
    for (const torch::Tensor& parameter : group.parameters) {
      if (!seen.insert(parameter.unsafeGetTensorImpl()).second) {
        refuse("a parameter of shape " + c10::str(parameter.sizes()) + " is in the optimizer twice, or in two of them");
      }
      if (parameter.requires_grad() && !of_model.contains(parameter.unsafeGetTensorImpl())) {
        refuse("the optimizer has a parameter of shape " + c10::str(parameter.sizes()) +
               " that is not in the module: it would differ between ranks; wrap a module that holds it as well, or an "
               "optimizer without it");
      }
    }
  }
}

core::OptimizerFamily family_of(const Stepper& stepper) {
  const std::vector<Stepper::Group> groups = stepper.groups();
  const bool is_sgd = std::ranges::all_of(
      groups, [](const Stepper::Group& group) { return group.family == core::OptimizerFamily::sgd; });
  return is_sgd ? core::OptimizerFamily::sgd : core::OptimizerFamily::adaptive;
}

void check_momentum(const Stepper& stepper, std::span<const core::CompressorSpec> codecs) {
  const core::TraitsTable known = compress::known_traits();
  const auto replaces = std::find_if(codecs.begin(), codecs.end(), [&](const core::CompressorSpec& codec) {
    const core::CompressorTraits* const traits = core::traits_of(codec, known);
    return traits != nullptr && traits->replaces_momentum;
  });
  if (replaces == codecs.end()) return;
  for (const Stepper::Group& group : stepper.groups()) {
    if (group.momentum.empty()) continue;
    refuse("compressor \"" + core::to_string(*replaces) +
           "\" keeps the momentum of gradients itself, and the optimizer has " + group.momentum +
           " as well; allowed is an optimizer without momentum, or another compressor");
  }
}

}  // namespace gradtune
