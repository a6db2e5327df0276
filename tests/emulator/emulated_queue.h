// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// A device's queue for the emulator: memory is the host's, and what is asked for has been done when the call returns.
// And compressors of a device in the place of those of the host, for tests that are written for these.
#pragma once

#include <memory>

#include "engine/compress/compressor.h"
#include "engine/compress/queue.h"

namespace gradtune::emulator {

class EmulatedQueue final : public compress::DeviceQueue {
 public:
  void* stream() const override { return nullptr; }
  core::Status after(const core::Fence& fence, int64_t timeout_ms) override { return fence.wait(timeout_ms); }
  core::Fence mark() override { return {}; }
  void copy(void* to, const void* from, int64_t bytes) override;
  void fill(void* to, std::byte value, int64_t bytes) override;
};

// Does on an emulated device what it is asked to do on a queue of the host.
std::unique_ptr<compress::Compressor> on_emulator(std::unique_ptr<compress::Compressor> device_compressor);

}  // namespace gradtune::emulator
