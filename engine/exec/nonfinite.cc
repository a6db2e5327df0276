// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
#include "engine/exec/nonfinite.h"

#include "engine/exec/device.h"

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

void make_void(const BucketProgram& bucket, const BucketMemory& memory, bool was_drained, compress::Queue& queue) {
  if (const RowState* const rows = memory.rows) {
    const compress::RowBuffer& list = rows->lists[static_cast<size_t>(bucket.lists->result)];
    const int64_t n = list.count * bucket.lists->width;
    if (was_drained) queue.fill(list.values, kNanByte, n * static_cast<int64_t>(sizeof(float)));
    return make_nans_alike(reinterpret_cast<std::byte*>(list.values), core::DType::f32, n);
  }
  const bool is_away = bucket.space != core::Space::host;
  const int64_t bytes = bucket.numel * core::bytes_per_element(bucket.dtype);
  compress::Queue& here = is_away ? memory.device->current() : queue;
  if (!bucket.carries_nonfinite || was_drained) {
    here.fill(memory.gradient, kNanByte, bytes);
  } else if (!is_away) {
    make_nans_alike(memory.gradient, bucket.dtype, bucket.numel);
  } else if (Kernels* const kernels = memory.device->kernels()) {
    kernels->make_nans_alike(memory.gradient, bucket.dtype, bucket.numel, here);
  } else {  // the numbers that were copied to the device are still here
    std::byte* const numbers = memory.at(bucket.numbers[core::Space::host]);
    make_nans_alike(numbers, bucket.dtype, bucket.numel);
    here.copy(memory.gradient, numbers, bytes);
  }
}

}  // namespace gradtune::exec
