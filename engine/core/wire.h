// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// The element types that collectives carry, and the reductions that they apply.
#pragma once

#include <cstdint>

#include "engine/core/gradient_table.h"

namespace gradtune::core {

enum class WireType : uint8_t { u8, f32, f64, bf16, f16 };
constexpr int64_t bytes_per_element(WireType type) {
  return type == WireType::u8 ? 1 : type == WireType::f32 ? 4 : type == WireType::f64 ? 8 : 2;
}

constexpr WireType wire_type_of(DType dtype) {
  switch (dtype) {
    case DType::f32: return WireType::f32;
    case DType::bf16: return WireType::bf16;
    case DType::f16: return WireType::f16;
    case DType::f64: return WireType::f64;
  }
  return WireType::u8;
}

enum class Reduction : uint8_t { sum, max };

}  // namespace gradtune::core
