// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// The gradient table: the parameters of a model in the order in which backward finishes their gradients. The order
// is learned in the first step and taken from rank 0; small tensors come last (small_last). Strategies refer to
// tensors by their positions in this table.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "engine/core/space.h"

namespace gradtune::core {

enum class DType : uint8_t { f32, bf16, f16, f64 };

inline constexpr std::array kDTypes = {DType::f32, DType::bf16, DType::f16, DType::f64};

std::string_view to_string(DType dtype);
constexpr int64_t bytes_per_element(DType dtype) { return dtype == DType::f64 ? 8 : dtype == DType::f32 ? 4 : 2; }

// The measured sparsity of a gradient; an unknown gradient counts as dense. Shares are of rows that are not zero.
struct Content {
  int64_t row = 1;                    // elements that are zero or not together: the width of an embedding, or 1
  double of_one = 1, of_all = 1;      // on one rank, and in the sum of all ranks
  double high_one = 1, high_all = 1;  // the 90th percentile over steps, on the rank that has most

  // The share in the sum over `summed` of the `ranks` ranks: between of_one and of_all by a power law.
  double at(int summed, int ranks) const;

  bool operator==(const Content&) const = default;
};

struct TensorInfo {
  std::string name;
  std::vector<int64_t> shape;
  int64_t numel = 0;
  DType dtype = DType::f32;
  double ready_us = 0;  // after the first ready gradient of a backward pass; 0 while not measured
  double read_us = -1;  // its parameter's first read by forward, after the last update; -1: no reader was seen
  Content content = {};
  Space space = Space::host;  // of its gradient
  // The order of the gradient's dimensions in memory, the slowest-varying first; empty: as in `shape`, row by row.
  std::vector<int32_t> memory_order = {};

  bool is_row_major() const { return memory_order.empty(); }
  // The number of rows of its memory as a matrix: one for each index of the slowest-varying dimension.
  int64_t memory_rows() const;
  // The number of elements that are zero or not together if gradients come as rows of the first dimension: a row, or
  // 1 if a row is not contiguous in memory.
  int64_t row_width() const;

  bool operator==(const TensorInfo&) const = default;
};

// The share of its payloads that a compressor used for these gradients, measured on a sample. For compressors whose
// payloads need not be full.
struct CodecUse {
  std::string codec;  // as users write it
  double share = 1;

  bool operator==(const CodecUse&) const = default;
};

struct GradientTable {
  std::vector<TensorInfo> tensors;
  double forward_us = 0;         // a forward pass, from the end of the last update to its own end; 0 while not measured
  double update_element_us = 0;  // time of the optimizer for each element; 0 while not measured
  std::vector<CodecUse> uses = {};  // empty while not measured

  int64_t numel() const;
  int64_t bytes() const;  // of the gradients in their own dtypes

  // The position of the first of the small tensors at the end, which together hold at most kSmallShare of all
  // elements; tensors.size() if there are none.
  size_t first_small() const;

  // A hash of names, shapes and dtypes that does not depend on the order or the times. It identifies the model in
  // strategy files.
  uint64_t fingerprint() const;

  bool operator==(const GradientTable&) const = default;
};

// The dtypes of the table's gradients, in the order of kDTypes.
std::vector<DType> dtypes_of(const GradientTable& table);

// Biases, norms and the first convolutions are a few thousandths of a model. Compressing them saves next to nothing
// and costs accuracy, but they lie between the large tensors. Once they are moved behind the large tensors, they
// form one contiguous bucket.
constexpr double kSmallShare = 0.005;

// Returns `order` (positions in the table) with the small tensors after the others, each group in the given order.
// The small tensors are the smallest ones that together hold at most kSmallShare of all elements.
std::vector<int32_t> small_last(const GradientTable& table, const std::vector<int32_t>& order);

}  // namespace gradtune::core
