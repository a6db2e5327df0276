// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// What rank 0's module holds, to all ranks.
#pragma once

#include <torch/types.h>

#include <cstddef>
#include <vector>

#include "hooks/peers.h"

namespace gradtune {

class ModuleBroadcast {
 public:
  explicit ModuleBroadcast(Peers& peers) : peers_(peers) {}

  // Tensors of any dtypes and strides, the same on all ranks, by all ranks. Small ones travel together: a collective for
  // each would cost a round trip for each. Throws core::Exception.
  void broadcast(const std::vector<torch::Tensor>& tensors);

 private:
  void broadcast_together(const std::vector<torch::Tensor>& tensors, size_t bytes);

  Peers& peers_;
  std::vector<std::byte> staging_;  // kept from step to step
};

}  // namespace gradtune
