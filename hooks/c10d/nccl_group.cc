// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
#include "hooks/c10d/nccl_group.h"

#include <c10/core/DeviceGuard.h>

#include <chrono>
#include <vector>

#include "hooks/c10d/launcher.h"
#include "hooks/c10d/with_deadline.h"

namespace gradtune {

std::unique_ptr<comm::Communicator> make_nccl_group(const std::string& prefix,
                                                    const c10::intrusive_ptr<c10d::Store>& store, int rank, int size,
                                                    int64_t timeout_ms, QueueStream& stream) {
  const auto share = [&](const std::string& mine) {
    return with_deadline(std::chrono::milliseconds(timeout_ms), [store, mine, key = "nccl/" + prefix] {
      if (!mine.empty()) store->set(key, std::vector<uint8_t>(mine.begin(), mine.end()));
      const std::vector<uint8_t> id = store->get(key);
      return std::string(id.begin(), id.end());
    });
  };
  const c10::DeviceGuard here(stream.where());  // NCCL uses the calling thread's device
  auto made =
      comm::make_nccl_communicator({.rank = rank,
                                    .size = size,
                                    .connect_within_ms = timeout_ms,
                                    .share = share,
                                    .library = environment_variable("GRADTUNE_NCCL_LIBRARY").value_or("libnccl.so.2")},
                                   stream);
  if (made) return std::move(made.value());
  // A library that does not fit is the only fault of the caller.
  const std::string hint = made.error().code == core::Error::Code::invalid
                               ? "; variable GRADTUNE_NCCL_LIBRARY names another file, and option collectives \"gloo\" "
                                 "needs none"
                               : "";
  throw core::Exception(
      {made.error().code, "connecting the group \"" + prefix + "\" failed: " + made.error().message + hint});
}

}  // namespace gradtune
