// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// The gradient table: the parameters of a model in the order in which backward finishes their gradients. The order is
// learned in the first step and taken from rank 0; small tensors come last (small_last); positions in this table are
// what strategies speak of.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace gradtune::core {

enum class DType : uint8_t { f32, bf16, f16 };

inline constexpr std::array kDTypes = {DType::f32, DType::bf16, DType::f16};

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

  // Where the small tensors at the end begin, those that hold at most kSmallShare of all elements together;
  // tensors.size() where there are none.
  size_t first_small() const;

  // A hash of names, shapes and dtypes, the same whatever the order and the times: identifies the model in strategy
  // files.
  uint64_t fingerprint() const;

  bool operator==(const GradientTable&) const = default;
};

// Biases, norms and the first convolutions are a few thousandths of a model. To compress them saves next to nothing and
// costs accuracy, but they lie between the large tensors; behind them, all small ones are one contiguous bucket.
constexpr double kSmallShare = 0.005;

// `order` (positions in the table) with the small tensors behind the others, both in the order given. Small are the
// smallest ones, as many as hold at most kSmallShare of all elements together.
std::vector<int32_t> small_last(const GradientTable& table, const std::vector<int32_t>& order);

}  // namespace gradtune::core
