// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// Waits that cannot be given up, and have a deadline even so: for the end of a thread, or of what was aborted,
// whose memory is to be freed. An error would not do here: the caller would go on and free what somebody else still
// writes to. So, when the deadline passes, one line says what was waited for and the process ends by std::abort, which
// leaves a core and tells a launcher; a job that hangs tells nobody anything.
//
// Deadlines are for what should never happen. They are generous, so that no machine is loaded enough to meet them; what
// may take longer by its nature, such as a collective that has a deadline of its own, is waited for as long as that.
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

// Until `holds`, which is looked at with the lock, as std::condition_variable::wait does.
template <typename Predicate>
void wait_or_end_process(std::condition_variable& changed, std::unique_lock<std::mutex>& lock, Predicate holds,
                         std::string_view what, int64_t limit_ms = kMostWaitMs) {
  if (!changed.wait_for(lock, std::chrono::milliseconds(limit_ms), holds)) end_process(what, limit_ms);
}

// A thread whose join has a deadline. Whoever joins it, or lets it be destroyed, has told it to end before. What its
// body throws ends the process, as with std::thread: owners catch what their threads may throw.
class BoundedThread {
 public:
  BoundedThread() = default;
  // `name`: for the line, "the communication thread".
  BoundedThread(std::string name, std::function<void()> body);
  BoundedThread(BoundedThread&&) noexcept = default;
  BoundedThread& operator=(BoundedThread&&) noexcept = default;  // to one that is not joinable
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
