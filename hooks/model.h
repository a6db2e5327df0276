// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// What is trained, as a session sees it: the named parameters and buffers of a module, and whether they are still those
// of before. A look in every step neither makes lists nor allocates.
#pragma once

#include <torch/nn/module.h>

#include <cstdint>
#include <string>
#include <vector>

#include "engine/core/result.h"

namespace gradtune {

struct NamedTensor {
  std::string name;
  torch::Tensor tensor;
};

class Model {
 public:
  // The module must outlive it. `with_buffers`: buffers are those of rank 0 in every step; otherwise they are each
  // rank's own, and none are listed. Throws, with its name, for a parameter or buffer that can not be sent to other
  // ranks: one that is not dense, not on the CPU, or whose elements share memory.
  Model(torch::nn::Module& module, bool with_buffers);

  // In order of registration, trainable or not. What is registered under several names stands under the first.
  const std::vector<NamedTensor>& parameters() const { return parameters_; }
  const std::vector<NamedTensor>& buffers() const { return buffers_; }

  // An error that names what was added, removed, replaced, unfrozen, moved or converted since then, and would differ
  // between ranks or have a gradient that nobody sees. Buffers may change their shape or dtype.
  core::Status check_unchanged() const;

  // Drops the gradients of all parameters, as the optimizers' zero_grad does.
  void drop_gradients() const;

  // Hash of the buffers' shapes and dtypes as they are now.
  uint64_t buffer_layout();

 private:
  struct Kept {  // of a parameter
    const void* storage;
    bool trainable;
  };

  const torch::nn::Module& module_;
  const bool with_buffers_;
  std::vector<NamedTensor> parameters_, buffers_;
  std::vector<Kept> kept_;
  uint64_t registered_ = 0;     // hash of all tensors that the module and those inside of it hold
  std::vector<int64_t> sizes_;  // of all buffers, with their dtypes, one behind the other
  uint64_t buffer_layout_ = 0;
};

}  // namespace gradtune
