// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
#include "tests/hooks/fuzz/features.h"

#include <algorithm>
#include <cstdlib>
#include <stdexcept>

namespace gradtune::test {
namespace {

constexpr Feature kFeatures[] = {
    // Models.
    {"tied", "a weight that is registered under two names and used twice"},
    {"unused", "a parameter that no pass reaches"},
    {"some_ranks", "a layer that some ranks use in some passes"},
    {"frozen", "parameters that require no gradient"},
    {"empty", "a parameter without elements that is used"},
    {"empty_unused", "a parameter without elements that no pass reaches"},
    {"odd", "scalars, single elements and sizes that nothing divides"},
    {"large", "a layer that fills several buckets"},
    {"huge", "weights of more than 4 MiB"},
    {"many", "dozens of layers"},
    {"transposed", "weights that lie column by column"},
    {"channels_last", "weights of convolutions in that memory format"},
    {"gaps", "weights that are a part of a larger tensor"},
    {"batch_norm", "BatchNorm and its buffers"},
    {"embedding", "an embedding"},
    {"sparse", "an embedding with sparse gradients"},
    {"buffers", "buffers of several dtypes that change in forward"},
    {"bf16", "layers of bfloat16"},
    {"f16", "layers of float16"},
    {"hooks", "hooks of the user on a parameter"},
    {"penalty", "a loss that holds the norm of gradients"},
    {"left_out", "parameters that are not in the optimizer"},
    {"groups", "an optimizer with two groups of parameters"},
    // Calls.
    {"no_sync", "passes that only accumulate"},
    {"two_passes", "passes that each communicate, before one step()"},
    {"closure", "step(closure)"},
    {"clip", "clip_grad_norm_"},
    {"scale", "gradients that the user changes in place"},
    {"replace", "gradients that the user replaces by tensors of his own"},
    {"retain", "two passes through one graph"},
    {"freeze", "a parameter that is frozen after wrap()"},
    {"threads", "a thread for each step"},
    {"companion", "two jobs in the same processes, step by step in turn"},
    {"skip", "a step without step()"},
    {"zero_inner", "zero_grad() of the user's optimizer"},
    {"zero_zeros", "zero_grad(false) of the user's optimizer"},
    {"zero_module", "zero_grad() of the model"},
    {"zero_never", "gradients that are kept for the next step"},
    {"evaluate", "evaluation with exclude_step()"},
    {"nonfinite", "an infinite loss on one rank"},
    {"save", "save_checkpoint() alone"},
    {"save_after_skip", "save_checkpoint() after a step that was skipped"},
    {"failed_save", "save_checkpoint() into a folder that can not be made"},
    {"restart", "save_checkpoint(), and load_checkpoint() into a new model, optimizer and wrap"},
    {"restart_other", "the same with other options"},
    {"rollback", "load_checkpoint() of what the same wrap saved some steps ago"},
    {"rewrap", "wrapped again when the old one is gone"},
    {"rewrap_assign", "wrapped again by assignment"},
    {"import", "export_strategy(), and wrapped again with that file"},
    // Options.
    {"half", "fidelity half"},
    {"lossy", "fidelity lossy"},
    {"dgc", "a compressor that keeps the optimizer's momentum"},
    {"signs", "compressors that send signs without a scale"},
    {"tuning", "tuning"},
    {"pacing", "a paced link, on which there is something to gain"},
    {"strategy_file", "a random strategy to start from"},
    {"late", "forward_overlap, and buckets of that strategy that are due at the next forward pass"},
    // Mistakes of one rank.
    {"fault_forward", "an exception in forward"},
    {"fault_backward", "an exception in backward"},
    {"fault_forward_caught", "an exception in forward, after which the rank leaves out the batch"},
    {"fault_backward_caught", "an exception in backward, after which the rank goes on with the next batch"},
    {"fault_backward_kept", "an exception in backward, after which the rank does something else for long"},
    {"fault_between", "an exception between backward and step()"},
    {"fault_option", "an option that is refused, on one rank"},
    {"fault_option_differs", "an option that differs from other ranks'"},
    {"fault_model", "another model than other ranks have"},
    {"fault_parameter", "a model that is refused, on one rank"},
    {"fault_frozen", "a parameter that is frozen on one rank"},
    {"fault_format", "a weight that lies otherwise on one rank"},
    {"fault_buffer", "a buffer of another size on one rank"},
    {"fault_buffer_grows", "a buffer that grows on one rank"},
    {"fault_save", "save_checkpoint() on one rank"},
    {"fault_load", "load_checkpoint() on one rank"},
    {"fault_no_step", "step() on all ranks but one"},
    {"fault_no_backward", "a step without a pass on one rank"},
    {"fault_extra_pass", "one pass more on one rank"},
    {"fault_no_sync", "a last pass under no_sync() on one rank"},
    {"fault_rewrap", "wrap() again on one rank"},
    {"fault_leave", "a rank that ends early, and well"},
    {"fault_exit", "a process that ends without unwinding"},
};

std::string known_names() {
  std::string names;
  for (const Feature& feature : kFeatures) names += (names.empty() ? "" : ", ") + std::string(feature.name);
  return names;
}

void check_known(std::string_view name) {
  if (std::ranges::find(kFeatures, name, &Feature::name) != std::end(kFeatures)) return;
  throw std::invalid_argument("feature \"" + std::string(name) + "\" is unknown; known are " + known_names());
}

}  // namespace

std::span<const Feature> all_features() { return kFeatures; }

Features::Features(std::string_view without) {
  while (!without.empty()) {
    const std::string_view name = without.substr(0, without.find(','));
    without.remove_prefix(std::min(without.size(), name.size() + 1));
    if (name.empty()) continue;
    check_known(name);
    without_.emplace(name);
  }
}

Features Features::from_environment() {
  const char* const without = std::getenv("FUZZ_WITHOUT");
  return without == nullptr ? Features() : Features(without);
}

bool Features::has(std::string_view name) const {
  check_known(name);
  return !without_.contains(name);
}

}  // namespace gradtune::test
