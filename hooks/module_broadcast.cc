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

void ModuleBroadcast::broadcast_buffers(const std::vector<NamedTensor>& buffers) {
  broadcast(buffers);
  kept_.keep(buffers);
}

// The messages depend only on shapes and dtypes, because strides may differ between ranks.
void ModuleBroadcast::broadcast(const std::vector<NamedTensor>& tensors) {
  constexpr size_t kMostBytes = size_t{4} << 20;
  if (peers_.size() == 1) return;
  const torch::NoGradGuard no_grad;
  size_t bytes = 0;
  for (const auto& [name, tensor] : tensors) {
    if (tensor.numel() == 0) continue;
    if (tensor.nbytes() >= kMostBytes) {
      torch::Tensor rows = tensor.detach().to(torch::kCPU).contiguous().resolve_conj().resolve_neg();
      peers_.broadcast(static_cast<std::byte*>(rows.data_ptr()), static_cast<int64_t>(rows.nbytes()));
      const bool is_copy = rows.const_data_ptr() != tensor.const_data_ptr();
      if (peers_.rank() != 0 && is_copy) tensor.variable_data().copy_(rows);
      continue;
    }
    together_.push_back(tensor.variable_data());
    bytes += room_of(tensor);
    if (bytes < kMostBytes) continue;
    broadcast_staged();
    bytes = 0;
  }
  if (!together_.empty()) broadcast_staged();
}

// Elements are sent in row-major order, whatever the tensors' own strides.
void ModuleBroadcast::broadcast_staged() {
  size_t bytes = 0;
  for (const torch::Tensor& tensor : together_) bytes += room_of(tensor);
  staging_.resize(std::max(staging_.size(), bytes));
  const bool is_root = peers_.rank() == 0;
  const auto for_staged = [&](auto body) {
    for (size_t at = 0; const torch::Tensor& tensor : together_) {
      body(tensor, torch::from_blob(staging_.data() + at, tensor.sizes(), tensor.scalar_type()));
      at += room_of(tensor);
    }
  };
  if (is_root) for_staged([](const torch::Tensor& tensor, const torch::Tensor& staged) { staged.copy_(tensor); });
  peers_.broadcast(staging_.data(), static_cast<int64_t>(bytes));
  if (!is_root) for_staged([](const torch::Tensor& tensor, const torch::Tensor& staged) { tensor.copy_(staged); });
  together_.clear();
}

}  // namespace gradtune
