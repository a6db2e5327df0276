// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
#include "hooks/nested_pass.h"

#include <torch/csrc/autograd/graph_task.h>

#include <cstddef>

namespace gradtune {

// The thread's current node is not enough: the device's thread ends a pass over layers on a device, and it is in no
// node, while the node that called the pass waits on another thread. LibTorch stores the depth of each pass in its
// GraphTask, but exposes only the address of one member of it.
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
