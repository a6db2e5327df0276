// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// What becomes of gradients in a step that was not finite. Where a bucket's program carries NaN and Inf faithfully,
// each is where plain sums have it and all else is as it should be; NaNs are only given the same bits, since which of
// two an addition keeps is left open to processors, and all ranks have to hold the same. All other buckets become NaN.
#pragma once

#include <cstddef>
#include <cstdint>

#include "engine/core/gradient_table.h"

namespace gradtune::exec {

// A number of such bytes is a NaN in every dtype.
constexpr std::byte kNanByte{0xff};

// Every NaN gets these bits; all other numbers stay.
void make_nans_alike(std::byte* numbers, core::DType dtype, int64_t n);

}  // namespace gradtune::exec
