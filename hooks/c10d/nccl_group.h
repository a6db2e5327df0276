// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// Communicators over NCCL for ranks that share a store, so that gradients on a device do not pass through the host.
// NCCL is loaded at run time, from the library that GRADTUNE_NCCL_LIBRARY names, or else as libnccl.so.2.
#pragma once

#include <c10/core/Device.h>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include <memory>
#include <string>

#include "engine/comm/nccl.h"
#include "engine/exec/device.h"

namespace gradtune {

// A device's queue for collectives.
class QueueStream final : public comm::CollectiveStream {
 public:
  QueueStream(exec::Device& device, c10::Device where)
      : device_(device), queue_(compress::device(device.queue(exec::Device::Stream::collectives))), where_(where) {}

  exec::Device& device() const { return device_; }
  c10::Device where() const { return where_; }
  void* handle() override { return queue_.stream(); }
  core::Status after(const core::Fence& fence, int64_t timeout_ms) override { return queue_.after(fence, timeout_ms); }
  core::Fence mark() override { return queue_.mark(); }

 private:
  exec::Device& device_;
  compress::DeviceQueue& queue_;
  const c10::Device where_;
};

// All ranks of the group must call this. `prefix` separates the group from others in the store. Throws
// core::Exception.
std::unique_ptr<comm::Communicator> make_nccl_group(const std::string& prefix,
                                                    const c10::intrusive_ptr<c10d::Store>& store, int rank, int size,
                                                    int64_t timeout_ms, QueueStream& stream);

}  // namespace gradtune
