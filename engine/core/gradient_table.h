// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// The gradient table: the parameters of a model in the order in which backward finishes their gradients. The order is
// learned in the first step and taken from rank 0; positions in this table are what strategies speak of.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace gradtune::core {

enum class DType : uint8_t { f32, bf16, f16 };

std::string_view to_string(DType dtype);
constexpr int64_t bytes_per_element(DType dtype) { return dtype == DType::f32 ? 4 : 2; }

struct TensorInfo {
  std::string name;
  std::vector<int64_t> shape;
  int64_t numel = 0;
  DType dtype = DType::f32;
  double ready_us = 0;  // since the first ready gradient of a backward pass; 0 while not measured

  bool operator==(const TensorInfo&) const = default;
};

struct GradientTable {
  std::vector<TensorInfo> tensors;

  int64_t numel() const;
  int64_t bytes() const;  // of the gradients in their own dtypes

  // A hash of names, shapes and dtypes, the same whatever the order and the times: identifies the model in strategy files.
  uint64_t fingerprint() const;

  bool operator==(const GradientTable&) const = default;
};

}  // namespace gradtune::core
