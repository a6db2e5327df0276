// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
#include "hooks/nested_pass.h"

#include <torch/csrc/autograd/graph_task.h>

#include <cstddef>

namespace gradtune {

// The thread's own node does not tell: a pass over layers on a device is ended by the device's thread, which is in no
// node, while the node that called it waits on another one. LibTorch knows the depth of each pass, and gives out one
// member of what knows it.
bool is_nested_pass() {
  using torch::autograd::GraphTask;
  const auto* const nodes = reinterpret_cast<const char*>(torch::autograd::get_current_graph_task_nodes_in_graph());
  if (nodes == nullptr) return false;
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Winvalid-offsetof"
  constexpr size_t kOffset = offsetof(GraphTask, nodes_in_graph_);
#pragma GCC diagnostic pop
  return reinterpret_cast<const GraphTask*>(nodes - kOffset)->reentrant_depth_ > 0;
}

}  // namespace gradtune
