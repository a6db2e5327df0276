// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// A deadline for calls of a library that has none. c10d's TCPStore waits for its server's answers as long as the
// connection lives, also when the server's process is frozen, its host is gone without a word, or a connection was made
// that nobody serves (seen where clients came in the moment in which the server began to listen).
#pragma once

#include <chrono>
#include <future>
#include <optional>
#include <thread>
#include <utility>

namespace gradtune {

// What `call` returns or throws, when it ends within the limit. Otherwise nothing, and its thread is left behind: so it
// must own all it uses, and whoever made it asks no more of the one that does not answer.
template <typename Call>
auto within(std::chrono::milliseconds limit, Call call) -> std::optional<decltype(call())> {
  std::packaged_task<decltype(call())()> task(std::move(call));
  auto answer = task.get_future();
  std::thread thread(std::move(task));
  if (answer.wait_for(limit) == std::future_status::ready) {
    thread.join();
    return answer.get();
  }
  thread.detach();
  return std::nullopt;
}

}  // namespace gradtune
