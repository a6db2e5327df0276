// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
#include "engine/comm/communicator.h"

#include <chrono>

namespace gradtune::comm {

int64_t link_bytes(const Collective& collective, int size) {
  return core::link_bytes(collective.kind, collective.count * bytes_per_element(collective.type), size);
}

core::Status run(Communicator& communicator, const Collective& collective, const std::function<core::Status()>& alarm) {
  Waiter waiter;
  std::future<core::Status> result = waiter.result();
  communicator.start(collective, waiter, 0);
  while (alarm && result.wait_for(std::chrono::milliseconds(kAlarmPeriodMs)) != std::future_status::ready) {
    core::Status alarmed = alarm();
    if (alarmed.ok()) continue;
    communicator.abort();
    result.wait();  // buffers are the caller's until then
    return alarmed;
  }
  return result.get();
}

}  // namespace gradtune::comm
