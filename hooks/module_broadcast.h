// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// Sends the contents of rank 0's module to all ranks.
#pragma once

#include <torch/types.h>

#include <cstddef>
#include <vector>

#include "hooks/c10d/peers.h"
#include "hooks/kept_buffers.h"
#include "hooks/model.h"

namespace gradtune {

class ModuleBroadcast {
 public:
  explicit ModuleBroadcast(Peers& peers) : peers_(peers) {}

  // Tensors of any dtypes and strides; all ranks must call it with the same shapes and dtypes. Small tensors are
  // sent together, because one collective for each would cost a round trip each. Autograd sees no change: a graph
  // that saved such a tensor may still run backward. Throws core::Exception.
  void broadcast(const std::vector<NamedTensor>& tensors);
  // The same for buffers, which have_changed() compares with from then on.
  void broadcast_buffers(const std::vector<NamedTensor>& buffers);
  bool have_changed(const std::vector<NamedTensor>& buffers) const { return kept_.may_differ(buffers); }

 private:
  void broadcast_staged();

  Peers& peers_;
  // Kept from step to step, so that a step does not allocate.
  std::vector<std::byte> staging_;
  std::vector<torch::Tensor> together_;
  KeptBuffers kept_;
};

}  // namespace gradtune
