// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// The kernels of a device: compressors, and the few kernels that are not compressors. They work on any queue of a
// device of their kind, whoever made it.
//
// Jobs are read before a call returns. All memory that they name is the device's; results are ready when the queue's
// work is done.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "engine/compress/compressor.h"
#include "engine/compress/queue.h"
#include "engine/compress/simd/scaling.h"
#include "engine/core/gradient_table.h"
#include "engine/core/result.h"
#include "engine/exec/balance.h"
#include "engine/exec/draining.h"
#include "engine/exec/loss_sample.h"

namespace gradtune::exec {

class Kernels {
 public:
  virtual ~Kernels() = default;

  // A compressor for a device's queues, with the same traits and payloads as the host's compressor of the same spec.
  // Returns an error if there is none; the host does the work then. There is one for the numbers of each dtype but
  // f64 (`none`, `bf16`, `fp16`).
  virtual core::Result<std::unique_ptr<compress::Compressor>> make_compressor(
      const core::CompressorSpec& spec) const = 0;

  // The same as the functions of these names (compress/scaling.h, nonfinite.h, draining.h, loss_sample.h,
  // balance.h), with the same bits.
  virtual void scale(const compress::Scaling& job, compress::Queue& queue) = 0;
  virtual void scale(const compress::DoubleScaling& job, compress::Queue& queue) = 0;
  virtual void scale(const NumbersScaling& job, compress::Queue& queue) = 0;
  virtual void make_nans_alike(std::byte* numbers, core::DType dtype, int64_t n, compress::Queue& queue) = 0;
  virtual void drain(const Drain& job, Drained& result, compress::Queue& queue) = 0;
  virtual void drain(const ParkedDrain& job, Drained& result, compress::Queue& queue) = 0;
  virtual void add_squares(const RunSquares& job, compress::Queue& queue) = 0;
  virtual void find_total(const TotalOf& job, compress::Queue& queue) = 0;
};

}  // namespace gradtune::exec
