// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// Kernels of a device of threads: those of the host, run by the thread of the queue.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>

#include "engine/exec/kernels.h"

namespace gradtune::exec {

class HostKernels : public Kernels {
 public:
  core::Result<std::unique_ptr<compress::Compressor>> make_compressor(const core::CompressorSpec& spec) const final;
  void scale(const compress::Scaling& job, compress::Queue& queue) final;
  void scale(const compress::DoubleScaling& job, compress::Queue& queue) final;
  void scale(const NumbersScaling& job, compress::Queue& queue) final;
  void make_nans_alike(std::byte* numbers, core::DType dtype, int64_t n, compress::Queue& queue) final;
  void drain(const Drain& job, Drained& result, compress::Queue& queue) final;
  void drain(const ParkedDrain& job, Drained& result, compress::Queue& queue) final;
  void add_squares(const RunSquares& job, compress::Queue& queue) final;
  void find_total(const TotalOf& job, compress::Queue& queue) final;

  virtual bool lacks(const core::CompressorSpec& /*spec*/) const { return false; }

  // The thread of that queue does the work, after earlier requests.
  virtual void ask(compress::Queue& queue, std::function<void()> work) const = 0;

  // Maps the device's address to one that this thread can access.
  virtual std::byte* reach(const void* address) const = 0;
  template <typename T>
  T* reach(T* address) const {
    return address == nullptr ? nullptr : reinterpret_cast<T*>(reach(static_cast<const void*>(address)));
  }
};

}  // namespace gradtune::exec
