// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// The parameters and buffers of a torch::nn::Module. A look in every step neither makes lists nor allocates.
#pragma once

#include <torch/nn/module.h>

#include <cstdint>
#include <string>
#include <vector>

#include "hooks/model.h"

namespace gradtune {

class ModuleModel final : public Model {
 public:
  // The module must outlive it. `with_buffers`: buffers are those of rank 0 in every step; otherwise they are each
  // rank's own, and none are listed. So it is with what is ignored (without_ignored). Throws, with its name, for a
  // parameter or buffer that can not be sent to other ranks: one that is not dense, not on the CPU, or whose elements
  // share memory.
  ModuleModel(torch::nn::Module& module, bool with_buffers, std::vector<std::string> ignored = {});

  // In order of registration. What is registered under several names stands under the first.
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
  std::vector<bool> trainable_;  // by parameter, when it was made
  uint64_t registered_ = 0;      // hash of all tensors that the module and those inside of it hold
  LayoutHash layout_;
};

}  // namespace gradtune
