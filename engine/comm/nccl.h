// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// A communicator over NCCL, whose buffers are in the memory of a CUDA device. libnccl.so.2 is loaded when the first
// one is made, so neither building nor running without it needs NCCL or CUDA. (Tests run several ranks over a fake
// library, and one rank over NCCL.)
//
// Collectives go to one stream, and their completion is reported as soon as they are queued, with the fence behind
// them. NCCL itself waits forever. So a thread of the communicator watches fences and errors, and aborts NCCL's
// communicator when a collective exceeds its deadline or a rank is lost. Then fences pass, and health() returns the
// error.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "engine/comm/communicator.h"

namespace gradtune::comm {

// The stream of a device for collectives. All communicators of a device share it, because NCCL requires one order of
// all its kernels on a device, the same on all ranks.
class CollectiveStream {
 public:
  virtual ~CollectiveStream() = default;
  virtual void* handle() = 0;  // a cudaStream_t
  virtual core::Status after(const core::Fence& fence, int64_t timeout_ms) = 0;
  virtual core::Fence mark() = 0;
};

struct NcclOptions {
  int rank = 0, size = 1;
  int64_t connect_within_ms = 300'000;
  // Returns to all ranks the value given by rank 0 (128 bytes); other ranks give an empty string.
  std::function<core::Result<std::string>(const std::string& mine)> share = {};
  std::string library = "libnccl.so.2";
};

// The calling thread's current device must be the stream's. Returns an error if the library is missing or lacks a
// function, if NCCL reports one (such as that there is no GPU), or if not all ranks connect in time. `stream`
// outlives the communicator.
core::Result<std::unique_ptr<Communicator>> make_nccl_communicator(const NcclOptions& options,
                                                                   CollectiveStream& stream);

}  // namespace gradtune::comm
