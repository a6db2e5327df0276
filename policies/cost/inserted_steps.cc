// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
#include "policies/cost/inserted_steps.h"

namespace gradtune::policies {

using core::Step;

std::vector<Copy> copies(const core::Option& option, int64_t numel, core::DType dtype, const std::vector<OpSize>& sizes,
                         const OnDevice& on_device) {
  std::vector<Copy> all;
  if (!on_device.gradients) return all;
  bool is_at_host = false;  // the gradient or, while there are payloads, the payloads
  const auto bring = [&](size_t before, bool to_host, int64_t bytes) {
    if (is_at_host != to_host) all.push_back({before, to_host, bytes});
    is_at_host = to_host;
  };
  const auto is_by_host = [&](const Step& step) {  // also for the step that compiling inserts beside a collective
    return on_device.is_by_host(core::is_collective(step.kind) ? core::Place::device : step.place);
  };
  const std::vector<Step>& steps = option.steps;
  const int64_t numbers_bytes = numel * core::bytes_per_element(dtype);
  const bool is_cast = is_staged(option, dtype);
  bring(0, is_by_host(steps.front()), numbers_bytes);
  for (size_t s = 0; s < steps.size(); ++s) {
    bring(s, core::is_collective(steps[s].kind) ? !on_device.collectives : is_by_host(steps[s]), sizes[s].held_bytes);
  }
  if (is_cast) bring(steps.size(), is_by_host(steps.back()), numel * core::bytes_per_element(core::DType::f32));
  bring(steps.size(), false, numbers_bytes);
  return all;
}

}  // namespace gradtune::policies
