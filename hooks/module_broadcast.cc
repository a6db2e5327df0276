// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
#include "hooks/module_broadcast.h"

#include <torch/utils.h>

#include <algorithm>

#include "engine/exec/program.h"

namespace gradtune {
namespace {

size_t room_of(const torch::Tensor& tensor) {
  return static_cast<size_t>(exec::aligned(static_cast<int64_t>(tensor.nbytes())));
}

}  // namespace

void ModuleBroadcast::broadcast(const std::vector<torch::Tensor>& tensors) {
  constexpr size_t kMostBytes = size_t{4} << 20;
  const torch::NoGradGuard no_grad;
  std::vector<torch::Tensor> together;
  size_t bytes = 0;
  for (const torch::Tensor& tensor : tensors) {
    if (tensor.numel() == 0) continue;
    if (tensor.nbytes() >= kMostBytes && tensor.is_contiguous()) {
      peers_.broadcast(static_cast<std::byte*>(tensor.data_ptr()), static_cast<int64_t>(tensor.nbytes()));
      continue;
    }
    together.push_back(tensor.detach());
    bytes += room_of(tensor);
    if (bytes < kMostBytes) continue;
    broadcast_together(together, bytes);
    together.clear();
    bytes = 0;
  }
  if (!together.empty()) broadcast_together(together, bytes);
}

void ModuleBroadcast::broadcast_together(const std::vector<torch::Tensor>& tensors, size_t bytes) {
  staging_.resize(std::max(staging_.size(), bytes));
  std::vector<torch::Tensor> staged;
  for (size_t at = 0; const torch::Tensor& tensor : tensors) {
    staged.push_back(torch::from_blob(staging_.data() + at, tensor.sizes(), tensor.options()));
    at += room_of(tensor);
  }
  const bool is_root = peers_.rank() == 0;
  for (size_t t = 0; is_root && t < tensors.size(); ++t) staged[t].copy_(tensors[t]);
  peers_.broadcast(staging_.data(), static_cast<int64_t>(bytes));
  for (size_t t = 0; !is_root && t < tensors.size(); ++t) tensors[t].copy_(staged[t]);
}

}  // namespace gradtune
