// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
#include "engine/comm/communicator.h"

#include <chrono>

namespace gradtune::comm {

int64_t used_bytes(const Collective& collective, const std::byte* payload) {
  if (collective.used_bytes == nullptr) return collective.payload_bytes;
  return collective.used_bytes({payload, static_cast<size_t>(collective.payload_bytes)});
}

int64_t link_bytes(const Collective& collective, int size) {
  int64_t bytes = collective.count * bytes_per_element(collective.type);
  const bool has_parts = collective.kind == Collective::Kind::all_to_all;
  if (collective.used_bytes != nullptr && collective.in != nullptr) {
    const int64_t given = has_parts ? bytes * size : bytes;
    bytes = 0;
    for (int64_t at = 0; at < given; at += collective.payload_bytes)
      bytes += used_bytes(collective, collective.in + at);
    if (has_parts) bytes /= size;
  }
  return core::link_bytes(collective.kind, bytes, size);
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
