// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// Waits that cannot be given up, but still have a deadline: for the end of a thread, or of aborted work whose memory
// is about to be freed. An error would not do here: the caller would go on and free memory that somebody else still
// writes to. When the deadline passes, one line names what was waited for, and the process ends by std::abort. That
// leaves a core file and tells the launcher; a job that hangs tells nobody anything.
//
// The deadlines are for events that should never happen. They are generous, so that even a heavily loaded machine
// does not reach them. Work that may legitimately take longer, such as a collective with a deadline of its own, is
// waited for until that deadline.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <thread>

namespace gradtune::core {

constexpr int64_t kMostWaitMs = 60'000;

// Prints "gradtune: WHAT did not end within N ms ..." and ends the process.
[[noreturn]] void end_process(std::string_view what, int64_t limit_ms);

// Waits until `holds` is true; it is evaluated under the lock, as in std::condition_variable::wait.
template <typename Predicate>
void wait_or_end_process(std::condition_variable& changed, std::unique_lock<std::mutex>& lock, Predicate holds,
                         std::string_view what, int64_t limit_ms = kMostWaitMs) {
  if (!changed.wait_for(lock, std::chrono::milliseconds(limit_ms), holds)) end_process(what, limit_ms);
}

// A thread whose join has a deadline. The owner tells it to end before joining or destroying it. An exception that
// leaves `body` ends the process, as with std::thread, so owners catch what their threads may throw.
class BoundedThread {
 public:
  BoundedThread() = default;
  // `name` appears in the line that end_process prints, as in "the communication thread".
  BoundedThread(std::string name, std::function<void()> body);
  BoundedThread(BoundedThread&&) noexcept = default;
  BoundedThread& operator=(BoundedThread&&) noexcept = default;  // to a thread that is not joinable
  ~BoundedThread() { join(); }

  bool joinable() const { return thread_.joinable(); }
  void join(int64_t limit_ms = kMostWaitMs);

 private:
  struct End;
  std::string name_;
  std::shared_ptr<End> end_;
  std::thread thread_;
};

}  // namespace gradtune::core
