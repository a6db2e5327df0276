// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// What collectives carry, and how they add it up.
#pragma once

#include <cstdint>

#include "engine/core/gradient_table.h"

namespace gradtune::core {

enum class WireType : uint8_t { u8, f32, f64, bf16, f16 };
constexpr int64_t bytes_per_element(WireType type) {
  return type == WireType::u8 ? 1 : type == WireType::f32 ? 4 : type == WireType::f64 ? 8 : 2;
}

constexpr WireType wire_type_of(DType dtype) {
  return dtype == DType::f32 ? WireType::f32 : dtype == DType::bf16 ? WireType::bf16 : WireType::f16;
}

enum class Reduction : uint8_t { sum, max };

}  // namespace gradtune::core
