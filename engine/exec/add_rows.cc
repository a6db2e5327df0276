// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
#include "engine/exec/add_rows.h"

#include <algorithm>
#include <cstring>
#include <string>

#include "engine/core/float16.h"

namespace gradtune::exec {
namespace {

template <typename T>
void add_numbers(const std::byte* from, std::byte* to) {
  T sum = 0, value = 0;
  std::memcpy(&sum, to, sizeof sum);
  std::memcpy(&value, from, sizeof value);
  sum += value;
  std::memcpy(to, &sum, sizeof sum);
}

// Adds the number of that dtype at `from` to the one at `to`.
void add(core::DType dtype, const std::byte* from, std::byte* to) {
  if (dtype == core::DType::f32) return add_numbers<float>(from, to);
  if (dtype == core::DType::f64) return add_numbers<double>(from, to);
  uint16_t sum = 0, value = 0;
  std::memcpy(&sum, to, sizeof sum);
  std::memcpy(&value, from, sizeof value);
  sum = dtype == core::DType::bf16 ? core::narrow_bf16(core::widen_bf16(sum) + core::widen_bf16(value))
                                   : core::narrow_f16(core::widen_f16(sum) + core::widen_f16(value));
  std::memcpy(to, &sum, sizeof sum);
}

}  // namespace

void add_rows(const Arrived& arrived, const core::TensorInfo& tensor, const Piece& piece, std::byte* to) {
  const int64_t bytes = core::bytes_per_element(tensor.dtype), width = tensor.numel / tensor.shape.at(0);
  for (size_t k = 0; k < arrived.rows.size(); ++k) {
    const size_t i = arrived.order.empty() ? k : static_cast<size_t>(arrived.order[k]);
    const int64_t row = arrived.rows[i];
    if (row < 0 || row >= tensor.shape[0]) {
      throw core::Exception({core::Error::Code::invalid, "the sparse gradient of " + tensor.name + " has row " +
                                                             std::to_string(row) + " of " +
                                                             std::to_string(tensor.shape[0])});
    }
    const int64_t begin = std::max(row * width, piece.tensor_begin);
    const int64_t end = std::min((row + 1) * width, piece.tensor_begin + piece.length);
    for (int64_t e = begin; e < end; ++e) {
      const std::byte* const from = arrived.values + (static_cast<int64_t>(i) * width + e - row * width) * bytes;
      add(tensor.dtype, from, to + (e - piece.tensor_begin) * bytes);
    }
  }
}

}  // namespace gradtune::exec
