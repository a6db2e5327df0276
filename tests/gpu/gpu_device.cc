// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// A GPU as the device of tests.
#include "engine/core/clock.h"
#include "engine/exec/cuda/device.h"
#include "tests/suites/tested_device.h"

namespace gradtune::suites {

compress::Queue& device_queue() {
  static const core::SteadyClock clock;
  static const std::unique_ptr<exec::Device> device =
      std::move(exec::cuda::make_cuda_device({.times_every = 0}, clock)).value();
  return device->queue(exec::Device::Stream::codec);
}

void use_schedule(Schedule /*schedule*/, uint64_t /*seed*/) {}

}  // namespace gradtune::suites
