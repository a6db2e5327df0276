// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
#include "hooks/kept_buffers.h"

#include <torch/types.h>

#include <algorithm>
#include <cstring>
#include <span>

namespace gradtune {
namespace {

bool is_plain(const NamedTensor& buffer) {
  const torch::Tensor& tensor = buffer.tensor;
  return tensor.is_cpu() && tensor.is_non_overlapping_and_dense() && !tensor.is_conj() && !tensor.is_neg();
}

// Calls `visit` with each part of the bytes that tell these tensors apart from others: sizes, strides and memory.
template <typename Visit>
void for_bytes(const std::vector<NamedTensor>& buffers, const Visit& visit) {
  for (const auto& [name, tensor] : buffers) {
    for (const at::IntArrayRef lengths : {tensor.sizes(), tensor.strides()}) {
      visit(std::as_bytes(std::span(lengths.data(), lengths.size())));
    }
    visit(std::span(static_cast<const std::byte*>(tensor.const_data_ptr()), tensor.nbytes()));
  }
}

}  // namespace

void KeptBuffers::keep(const std::vector<NamedTensor>& buffers) {
  can_compare_ = std::ranges::all_of(buffers, is_plain);
  bytes_.clear();
  if (!can_compare_) return;
  for_bytes(buffers,
            [this](std::span<const std::byte> part) { bytes_.insert(bytes_.end(), part.begin(), part.end()); });
}

bool KeptBuffers::may_differ(const std::vector<NamedTensor>& buffers) const {
  if (!can_compare_ || !std::ranges::all_of(buffers, is_plain)) return true;
  size_t at = 0;
  bool are_same = true;
  for_bytes(buffers, [&](std::span<const std::byte> part) {
    are_same = are_same && part.size() <= bytes_.size() - at &&
               (part.empty() || std::memcmp(part.data(), bytes_.data() + at, part.size()) == 0);
    if (are_same) at += part.size();
  });
  return !are_same || at != bytes_.size();
}

}  // namespace gradtune
