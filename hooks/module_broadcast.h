// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// What rank 0's module holds, to all ranks.
#pragma once

#include <torch/types.h>

#include <cstddef>
#include <vector>

#include "hooks/c10d/peers.h"
#include "hooks/model.h"

namespace gradtune {

class ModuleBroadcast {
 public:
  explicit ModuleBroadcast(Peers& peers) : peers_(peers) {}

  // Tensors of any dtypes and strides, by all ranks, where all have the same shapes and dtypes. Small ones travel
  // together: a collective for each would cost a round trip for each. To autograd none of them changes: a graph that
  // saved one may still run backward. Throws core::Exception.
  void broadcast(const std::vector<NamedTensor>& tensors);

 private:
  void broadcast_staged();

  Peers& peers_;
  // Kept from step to step.
  std::vector<std::byte> staging_;
  std::vector<torch::Tensor> together_;
};

}  // namespace gradtune
