// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
#include "engine/core/bounded_wait.h"

#include <cstdio>
#include <cstdlib>
#include <utility>

namespace gradtune::core {

void end_process(std::string_view what, int64_t limit_ms) {
  std::fprintf(stderr,
               "gradtune: %.*s did not end within %lld ms, and what it works on cannot be freed before: the process "
               "ends\n",
               static_cast<int>(what.size()), what.data(), static_cast<long long>(limit_ms));
  std::fflush(stderr);
  std::abort();
}

struct BoundedThread::End {
  std::mutex mutex;
  std::condition_variable changed;
  bool reached = false;
};

BoundedThread::BoundedThread(std::string name, std::function<void()> body)
    : name_(std::move(name)), end_(std::make_shared<End>()), thread_([body = std::move(body), end = end_] {
        body();
        const std::lock_guard lock(end->mutex);
        end->reached = true;
        end->changed.notify_all();
      }) {}

void BoundedThread::join(int64_t limit_ms) {
  if (!thread_.joinable()) return;
  {
    std::unique_lock lock(end_->mutex);
    wait_or_end_process(
        end_->changed, lock, [&] { return end_->reached; }, name_, limit_ms);
  }
  thread_.join();
}

}  // namespace gradtune::core
