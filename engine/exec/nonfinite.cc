// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
#include "engine/exec/nonfinite.h"

namespace gradtune::exec {
namespace {

// `infinity`: the bits of infinity; without their sign, the bits of every NaN are larger.
template <typename Bits>
void make_alike(std::byte* numbers, int64_t n, Bits infinity) {
  constexpr auto kAll = static_cast<Bits>(~Bits{0});
  constexpr auto kMagnitude = static_cast<Bits>(kAll >> 1);
  auto* const bits = reinterpret_cast<Bits*>(numbers);
  for (int64_t i = 0; i < n; ++i) bits[i] = (bits[i] & kMagnitude) > infinity ? kAll : bits[i];
}

}  // namespace

void make_nans_alike(std::byte* numbers, core::DType dtype, int64_t n) {
  switch (dtype) {
    case core::DType::f32: return make_alike<uint32_t>(numbers, n, 0x7f800000);
    case core::DType::bf16: return make_alike<uint16_t>(numbers, n, 0x7f80);
    case core::DType::f16: return make_alike<uint16_t>(numbers, n, 0x7c00);
    case core::DType::f64: return make_alike<uint64_t>(numbers, n, 0x7ff0000000000000);
  }
}

}  // namespace gradtune::exec
