// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// The parameters and buffers of a torch::nn::Module. The check in every step neither makes lists nor allocates.
#pragma once

#include <torch/nn/module.h>

#include <cstdint>
#include <string>
#include <vector>

#include "hooks/model.h"

namespace gradtune {

class ModuleModel final : public Model {
 public:
  // The module must outlive this object. `with_buffers`: buffers are equal to rank 0's in every step; otherwise each
  // rank has its own, and none are listed. Names in `ignored` are left out too (without_ignored). Throws, with its
  // name, for a parameter or buffer that cannot be sent to other ranks: one that is not dense, not on the CPU, or
  // whose elements share memory.
  ModuleModel(torch::nn::Module& module, bool with_buffers, std::vector<std::string> ignored = {});

  // In order of registration. A tensor that is registered under several names is listed under the first.
  const std::vector<NamedTensor>& parameters() const override { return parameters_; }
  const std::vector<NamedTensor>& own_parameters() const override { return own_; }
  const std::vector<NamedTensor>& buffers() const override { return buffers_; }
  core::Status check_unchanged() override;
  void drop_gradients() const override;
  uint64_t buffer_layout() override { return layout_.of(buffers_); }

 private:
  const torch::nn::Module& module_;
  const bool with_buffers_;
  const std::vector<std::string> ignored_;
  std::vector<NamedTensor> parameters_, own_, buffers_;
  std::vector<bool> trainable_;  // by parameter, when this object was made
  uint64_t registered_ = 0;      // hash of all tensors that the module and its submodules hold
  LayoutHash layout_;
};

}  // namespace gradtune
