// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// The base of compressors that work on a device. Each has the traits, sizes and payloads of the host's compressor of
// the same spec. The bytes are equal, so some ranks may encode on the host and others on a device. (The bits of a NaN
// differ, because a device does not keep them.) The scratch differs. Gradients must lie on the device in full: lists
// of rows are on the host, so rows() is null. No header here contains CUDA; each family has its kernels in a .cu file.
#pragma once

#include <memory>
#include <span>

#include "engine/compress/compressor.h"

namespace gradtune::compress::cuda {

class DeviceCompressor : public Compressor {
 public:
  // By the one of the host.
  explicit DeviceCompressor(std::unique_ptr<Compressor> host) : host_(std::move(host)) {}

  const core::CompressorTraits& traits() const final { return host_->traits(); }
  const core::CompressorSpec& spec() const final { return host_->spec(); }
  Summing summing(int round) const final { return host_->summing(round); }
  int64_t round_bytes(const core::Extent& extent) const final { return host_->round_bytes(extent); }
  int64_t state_bytes(const core::Extent& extent) const final { return host_->state_bytes(extent); }
  int64_t scratch_bytes(const core::Extent& /*extent*/) const override { return 0; }

  void encode(const Encode& job, Queue& queue) const final { encode_all({&job, 1}, queue); }
  void decode(const Decode& job, Queue& queue) const final { decode_all({&job, 1}, queue); }
  void encode_all(std::span<const Encode> jobs, Queue& queue) const final;
  void decode_all(std::span<const Decode> jobs, Queue& queue) const final;
  core::Error defect(const Decode& job, size_t position) const final { return host_->defect(job, position); }

 private:
  // Launch kernels. Calls were checked: payloads of a decode have the size that they should have.
  virtual void enqueue_encode(std::span<const Encode> jobs, Queue& queue) const = 0;
  virtual void enqueue_decode(std::span<const Decode> jobs, Queue& queue) const = 0;

  std::unique_ptr<Compressor> host_;
};

// Tells the verdict that a payload is rejected (device_compressor.cu).
void enqueue_rejection(Verdict* verdict, size_t position, Queue& queue);

}  // namespace gradtune::compress::cuda
