// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// The emulator as the device of tests: memory is the host's, and all work is done when the call returns.
#include <cstring>

#include "tests/suites/tested_device.h"

namespace gradtune::suites {
namespace {

class EmulatedQueue final : public compress::DeviceQueue {
 public:
  void* stream() const override { return nullptr; }
  int device() const override { return 0; }
  core::Status after(const core::Fence& fence, int64_t timeout_ms) override { return fence.wait(timeout_ms); }
  core::Fence mark() override { return {}; }
  void copy(void* to, const void* from, int64_t bytes) override {
    if (bytes > 0) std::memcpy(to, from, static_cast<size_t>(bytes));
  }
  void fill(void* to, std::byte value, int64_t bytes) override {
    if (bytes > 0) std::memset(to, std::to_integer<int>(value), static_cast<size_t>(bytes));
  }
};

}  // namespace

compress::Queue& device_queue() {
  static EmulatedQueue queue;
  return queue;
}

void use_schedule(Schedule schedule, uint64_t seed) { emulator::set_schedule(schedule, seed); }

}  // namespace gradtune::suites
