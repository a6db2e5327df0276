// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
#include "engine/core/gradient_table.h"

#include <algorithm>
#include <cmath>

#include "engine/core/hash.h"

namespace gradtune::core {

std::string_view to_string(DType dtype) {
  switch (dtype) {
    case DType::f32: return "float32";
    case DType::bf16: return "bfloat16";
    case DType::f16: return "float16";
    case DType::f64: return "float64";
  }
  return "unknown";
}

double Content::at(int summed, int ranks) const {
  if (summed <= 1 || ranks <= 1 || !(of_one > 0)) return of_one;
  const double share = std::log(summed) / std::log(ranks);
  return std::min(1.0, of_one * std::pow(of_all / of_one, share));
}

int64_t TensorInfo::memory_rows() const {
  return shape[is_row_major() ? 0 : static_cast<size_t>(memory_order.front())];
}

int64_t TensorInfo::row_width() const { return is_row_major() || memory_order.front() == 0 ? numel / shape[0] : 1; }

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

size_t GradientTable::first_small() const {
  const double most = kSmallShare * static_cast<double>(numel());
  size_t first = tensors.size();
  for (double sum = 0; first > 0; --first) {
    sum += static_cast<double>(tensors[first - 1].numel);
    if (sum > most) break;
  }
  return first;
}

uint64_t GradientTable::fingerprint() const {
  std::vector<const TensorInfo*> sorted;
  for (const TensorInfo& tensor : tensors) sorted.push_back(&tensor);
  std::sort(sorted.begin(), sorted.end(), [](const TensorInfo* a, const TensorInfo* b) { return a->name < b->name; });
  Hasher hasher;
  for (const TensorInfo* tensor : sorted) {
    hasher.add(tensor->name);
    hasher.add(tensor->shape.size());
    for (int64_t extent : tensor->shape) hasher.add(static_cast<uint64_t>(extent));
    hasher.add(static_cast<uint64_t>(tensor->dtype));
  }
  return hasher.value();
}

std::vector<DType> dtypes_of(const GradientTable& table) {
  std::vector<DType> dtypes;
  for (const DType dtype : kDTypes) {
    const auto is_such = [&](const TensorInfo& tensor) { return tensor.dtype == dtype; };
    if (std::ranges::any_of(table.tensors, is_such)) dtypes.push_back(dtype);
  }
  return dtypes;
}

std::vector<int32_t> small_last(const GradientTable& table, const std::vector<int32_t>& order) {
  const auto numel = [&](int32_t position) { return table.tensors[static_cast<size_t>(position)].numel; };
  std::vector<int32_t> by_size = order;
  std::stable_sort(by_size.begin(), by_size.end(), [&](int32_t a, int32_t b) { return numel(a) < numel(b); });
  const double most = kSmallShare * static_cast<double>(table.numel());
  std::vector<bool> is_small(table.tensors.size(), false);
  double sum = 0;
  for (const int32_t position : by_size) {
    sum += static_cast<double>(numel(position));
    if (sum > most) break;
    is_small[static_cast<size_t>(position)] = true;
  }
  std::vector<int32_t> result = order;
  std::stable_partition(result.begin(), result.end(),
                        [&](int32_t position) { return !is_small[static_cast<size_t>(position)]; });
  return result;
}

}  // namespace gradtune::core
