// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
#include "engine/comm/communicator.h"

#include <algorithm>
#include <chrono>
#include <deque>
#include <string>
#include <vector>

#include "engine/core/clock.h"

namespace gradtune::comm {

int64_t used_bytes(const Collective& collective, const std::byte* payload) {
  if (collective.used_bytes == nullptr) return collective.payload_bytes;
  return collective.used_bytes({payload, static_cast<size_t>(collective.payload_bytes)});
}

int64_t link_bytes(const Collective& collective, int size) {
  int64_t bytes = collective.count * bytes_per_element(collective.type);
  const bool has_parts = core::traits_of(collective.kind).has_input_parts;
  if (collective.used_bytes != nullptr && collective.in != nullptr) {
    const int64_t given = has_parts ? bytes * size : bytes;
    bytes = 0;
    for (int64_t at = 0; at < given; at += collective.payload_bytes)
      bytes += used_bytes(collective, collective.in + at);
    if (has_parts) bytes /= size;
  }
  return core::link_bytes(collective.kind, bytes, ranks_of(collective, size).size);
}

void tell(CompletionSink& sink, uint64_t token, core::Status status, core::Fence done) noexcept {
  try {
    sink.complete(token, std::move(status), done);
  } catch (...) {
    // There is nobody else to tell.
  }
}

bool await_buffers(const Collective& collective, CompletionSink& sink, uint64_t token) {
  const core::Status ready = collective.after.wait(collective.timeout_ms);
  if (!ready) tell(sink, token, core::copy_of(ready.error()));
  return ready.ok();
}

void abort_anyway(Communicator& communicator) noexcept {
  try {
    communicator.abort();
  } catch (...) {
    // The caller reports the earlier failure.
  }
}

core::Status run(Communicator& communicator, std::span<const Collective> collectives,
                 const std::function<core::Status()>& alarm, int64_t most_abort_ms) {
  std::deque<Waiter> waiters;
  std::vector<std::future<core::Status>> results;
  core::Status failed;
  int64_t limit_ms = 0;
  std::deque<std::vector<std::byte>> scratch;
  for (Collective collective : collectives) {
    limit_ms = std::max(limit_ms, completion_limit_ms(collective.timeout_ms));
    results.push_back(waiters.emplace_back().result());
    try {
      if (const int64_t bytes = communicator.scratch_bytes(collective); bytes > 0 && collective.scratch == nullptr) {
        collective.scratch = scratch.emplace_back(static_cast<size_t>(bytes)).data();
      }
      communicator.start(collective, waiters.back(), 0);
    } catch (...) {
      failed = core::caught_error(core::to_string(collective.kind));
      results.pop_back();  // nobody reports its completion
      break;
    }
  }
  const core::SteadyClock clock;
  const int64_t begin_ns = clock.now_ns();
  const auto ends_within = [&](const std::future<core::Status>& result, int64_t ms) {
    return result.wait_for(std::chrono::milliseconds(ms)) == std::future_status::ready;
  };
  core::Status ended;
  for (size_t r = 0; r < results.size(); ++r) {
    const std::string name(core::to_string(collectives[r].kind));
    while (failed.ok() && !ends_within(results[r], alarm ? std::min(limit_ms, kAlarmPeriodMs) : limit_ms)) {
      if (clock.now_ns() - begin_ns >= limit_ms * 1'000'000) {
        failed = core::Error{core::Error::Code::timeout,
                             name + " told nothing for " + std::to_string(limit_ms) + " ms, against its deadline"};
      } else if (alarm) {
        try {
          failed = alarm();
        } catch (...) {
          failed = core::caught_error("the alarm");
        }
      }
    }
    if (!failed.ok()) abort_anyway(communicator);
    if (!ends_within(results[r], most_abort_ms)) core::end_process(name + ", which was aborted,", most_abort_ms);
    core::Status own = results[r].get();
    if (own.ok()) own = waiters[r].done().wait(limit_ms);
    if (own.ok()) own = communicator.health();
    if (ended.ok()) ended = std::move(own);
  }
  if (results.empty() && !failed.ok()) abort_anyway(communicator);
  return failed.ok() ? ended : failed;
}

core::Status run(Communicator& communicator, const Collective& collective, const std::function<core::Status()>& alarm,
                 int64_t most_abort_ms) {
  return run(communicator, {&collective, 1}, alarm, most_abort_ms);
}

}  // namespace gradtune::comm
