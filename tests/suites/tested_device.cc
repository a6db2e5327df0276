// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
#include "tests/suites/tested_device.h"

#include <utility>

namespace gradtune::suites {
namespace {

using namespace compress;

class OnDevice final : public Compressor {
 public:
  explicit OnDevice(std::unique_ptr<Compressor> device) : device_(std::move(device)) {}

  const core::CompressorTraits& traits() const override { return device_->traits(); }
  const core::CompressorSpec& spec() const override { return device_->spec(); }
  Summing summing(int round) const override { return device_->summing(round); }
  int64_t scratch_bytes(const core::Extent& extent) const override { return device_->scratch_bytes(extent); }
  int64_t round_bytes(const core::Extent& extent) const override { return device_->round_bytes(extent); }
  int64_t state_bytes(const core::Extent& extent) const override { return device_->state_bytes(extent); }
  void encode(const Encode& job, Queue& /*queue*/) const override {
    device_->encode(job, device_queue());
    finish(device_queue());
  }
  void decode(const Decode& job, Queue& /*queue*/) const override {
    device_->decode(job, device_queue());
    finish(device_queue());
  }
  core::Error defect(const Decode& job, size_t position) const override { return device_->defect(job, position); }

 private:
  std::unique_ptr<Compressor> device_;
};

}  // namespace

void finish(compress::Queue& queue) {
  constexpr int64_t kMostMs = 60'000;
  queue.mark().wait(kMostMs).value();
}

std::unique_ptr<compress::Compressor> on_device(std::unique_ptr<compress::Compressor> device_compressor) {
  return std::make_unique<OnDevice>(std::move(device_compressor));
}

}  // namespace gradtune::suites
