// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
#include "engine/core/gradient_table.h"

#include <algorithm>

#include "engine/core/hash.h"

namespace gradtune::core {

std::string_view to_string(DType dtype) {
  switch (dtype) {
    case DType::f32: return "float32";
    case DType::bf16: return "bfloat16";
    case DType::f16: return "float16";
  }
  return "unknown";
}

int64_t GradientTable::numel() const {
  int64_t sum = 0;
  for (const TensorInfo& tensor : tensors) sum += tensor.numel;
  return sum;
}

int64_t GradientTable::bytes() const {
  int64_t sum = 0;
  for (const TensorInfo& tensor : tensors) sum += tensor.numel * bytes_per_element(tensor.dtype);
  return sum;
}

uint64_t GradientTable::fingerprint() const {
  std::vector<const TensorInfo*> sorted;
  for (const TensorInfo& tensor : tensors) sorted.push_back(&tensor);
  std::sort(sorted.begin(), sorted.end(),
            [](const TensorInfo* a, const TensorInfo* b) { return a->name < b->name; });
  Hasher hasher;
  for (const TensorInfo* tensor : sorted) {
    hasher.add(tensor->name);
    hasher.add(tensor->shape.size());
    for (int64_t extent : tensor->shape) hasher.add(static_cast<uint64_t>(extent));
    hasher.add(static_cast<uint64_t>(tensor->dtype));
  }
  return hasher.value();
}

}  // namespace gradtune::core
