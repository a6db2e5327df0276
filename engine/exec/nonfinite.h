// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// The treatment of gradients in a step that was not finite. If a bucket's program carries NaN and Inf faithfully,
// each is where plain sums have it, and all other elements are correct. Its NaNs are only given the same bits:
// processors may keep either of two added NaNs, and all ranks have to hold the same bits. All other buckets become
// NaN.
#pragma once

#include <cstddef>
#include <cstdint>

#include "engine/compress/queue.h"
#include "engine/core/gradient_table.h"
#include "engine/exec/compute.h"
#include "engine/exec/program.h"

namespace gradtune::exec {

// A number whose bytes all have this value is a NaN in every dtype.
constexpr std::byte kNanByte{0xff};

// Every NaN gets these bits; all other numbers are unchanged.
void make_nans_alike(std::byte* numbers, core::DType dtype, int64_t n);

// The gradient of a bucket in such a step becomes alike on all ranks. `was_drained`: residuals were added to
// gradients on some rank. They are still owed, so this gradient becomes NaN too. The queue is one of the host; a
// gradient on a device is left to the device's current queue.
void make_void(const BucketProgram& bucket, const BucketMemory& memory, bool was_drained, compress::Queue& queue);

}  // namespace gradtune::exec
