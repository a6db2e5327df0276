// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// A deadline for calls of a library that has none. c10d's TCPStore waits for its server's answers as long as the
// connection lives. That may be forever if the server's process is frozen, if its host vanished, or if nobody serves
// the connection. The last case was seen when clients connected at the moment at which the server began to listen.
#pragma once

#include <algorithm>
#include <chrono>
#include <exception>
#include <functional>
#include <future>
#include <string>
#include <thread>
#include <utility>

#include "engine/core/result.h"

namespace gradtune {

constexpr std::chrono::milliseconds kAskEvery{250};

// Returns the result of `call`. If `call` throws, returns an error (lost) with the first line of the message; stack
// traces follow it. If `call` does not end within the limit, returns an error (timeout) and leaves its thread
// behind. So `call` must own all that it uses, and the caller must not ask the silent library again. If there is an
// `alarm`, it is polled meanwhile, and an error of it ends the wait.
template <typename Call>
auto with_deadline(std::chrono::milliseconds limit, Call call, const std::function<core::Status()>& alarm = {})
    -> core::Result<decltype(call())> {
  try {
    std::packaged_task<decltype(call())()> task(std::move(call));
    auto answer = task.get_future();
    std::thread thread(std::move(task));
    const auto deadline = std::chrono::steady_clock::now() + limit;
    core::Status alarmed;
    for (auto left = limit; left.count() > 0 && alarmed.ok();) {
      if (answer.wait_for(alarm ? std::min(left, kAskEvery) : left) == std::future_status::ready) {
        thread.join();
        return answer.get();
      }
      if (alarm) alarmed = alarm();
      left = std::chrono::duration_cast<std::chrono::milliseconds>(deadline - std::chrono::steady_clock::now());
    }
    thread.detach();
    if (!alarmed.ok()) return alarmed.error();
  } catch (const std::exception& caught) {
    const std::string reason(caught.what());
    return core::Error{core::Error::Code::lost, reason.substr(0, reason.find('\n'))};
  }
  return core::Error{core::Error::Code::timeout, "no answer within " + std::to_string(limit.count()) + " ms"};
}

}  // namespace gradtune
