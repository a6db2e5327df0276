// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
#include "tests/emulator/emulated_queue.h"

#include <cstring>
#include <utility>

namespace gradtune::emulator {

void EmulatedQueue::copy(void* to, const void* from, int64_t bytes) {
  if (bytes > 0) std::memcpy(to, from, static_cast<size_t>(bytes));
}
void EmulatedQueue::fill(void* to, std::byte value, int64_t bytes) {
  if (bytes > 0) std::memset(to, std::to_integer<int>(value), static_cast<size_t>(bytes));
}

namespace {

using namespace compress;

class OnEmulator final : public Compressor {
 public:
  explicit OnEmulator(std::unique_ptr<Compressor> device) : device_(std::move(device)) {}

  const core::CompressorTraits& traits() const override { return device_->traits(); }
  const core::CompressorSpec& spec() const override { return device_->spec(); }
  Summing summing(int round) const override { return device_->summing(round); }
  int64_t scratch_bytes(const core::Extent& extent) const override { return device_->scratch_bytes(extent); }
  int64_t round_bytes(const core::Extent& extent) const override { return device_->round_bytes(extent); }
  int64_t state_bytes(const core::Extent& extent) const override { return device_->state_bytes(extent); }
  void encode(const Encode& job, Queue& /*queue*/) const override {
    EmulatedQueue queue;
    device_->encode(job, queue);
  }
  void decode(const Decode& job, Queue& /*queue*/) const override {
    EmulatedQueue queue;
    device_->decode(job, queue);
  }
  core::Error defect(const Decode& job, size_t position) const override { return device_->defect(job, position); }

 private:
  std::unique_ptr<Compressor> device_;
};

}  // namespace

std::unique_ptr<compress::Compressor> on_emulator(std::unique_ptr<compress::Compressor> device_compressor) {
  return std::make_unique<OnEmulator>(std::move(device_compressor));
}

}  // namespace gradtune::emulator
