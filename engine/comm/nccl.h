// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// A communicator over NCCL, whose buffers are a CUDA device's. libnccl.so.2 is loaded when the first one is made:
// nothing of NCCL or CUDA is needed to build this, or to run without it. (Tests have several ranks over a library of
// their own, and one rank over NCCL.)
//
// Collectives go to one stream, and are told as soon as they are asked for, with the fence behind them. NCCL itself
// waits for ever: a thread of the communicator watches fences and errors, and aborts NCCL's communicator when a
// collective outlives its deadline, or a rank is lost. Then fences pass, and health() tells.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "engine/comm/communicator.h"

namespace gradtune::comm {

// The stream of a device that collectives go to. One for all communicators of a device: NCCL's ask for one order of all
// kernels on it, the same on all ranks.
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
  // Gives all ranks what rank 0 gives (128 bytes); others give nothing.
  std::function<core::Result<std::string>(const std::string& mine)> share = {};
  std::string library = "libnccl.so.2";
};

// The calling thread's current device is the stream's. Errors: without the library, where it lacks a function that is
// used, or what NCCL says, such as that there is no GPU; where not all ranks are connected in time. `stream` outlives
// the communicator.
core::Result<std::unique_ptr<Communicator>> make_nccl_communicator(const NcclOptions& options,
                                                                   CollectiveStream& stream);

}  // namespace gradtune::comm
