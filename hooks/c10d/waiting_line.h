// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// The lines that a rank prints while it waits for others: which ranks it waits for, and at which point. They appear
// after some seconds and then now and then, so that a user can see why nothing happens. The caller finds out which
// ranks are missing.
#pragma once

#include <chrono>
#include <functional>
#include <mutex>
#include <string>

namespace gradtune {

class WaitingLine {
 public:
  using Say = std::function<void(const std::string& line)>;  // gets a line with its line end

  // `say` may be empty; then nothing is printed.
  explicit WaitingLine(Say say) : say_(std::move(say)) {}

  // Called repeatedly on the waiting thread. Prints `who_waits` unless it is empty or the next line is not due yet.
  void tick(const std::string& who_waits) {
    const auto now = std::chrono::steady_clock::now();
    if (!say_ || who_waits.empty() || now - began_ < next_) return;
    const auto seconds = std::chrono::duration_cast<std::chrono::seconds>(now - began_).count();
    say_("gradtune: " + who_waits + " (" + std::to_string(seconds) + " s so far)\n");
    next_ += next_ == kFirst ? kEvery - kFirst : kEvery;
  }

 private:
  static constexpr std::chrono::seconds kFirst{3}, kEvery{30};

  const Say say_;
  const std::chrono::steady_clock::time_point began_ = std::chrono::steady_clock::now();
  std::chrono::steady_clock::duration next_ = kFirst;
};

// A text that one thread finds out and another one reads.
class SharedText {
 public:
  void set(std::string text) {
    const std::lock_guard lock(mutex_);
    text_ = std::move(text);
  }
  std::string get() const {
    const std::lock_guard lock(mutex_);
    return text_;
  }

 private:
  mutable std::mutex mutex_;
  std::string text_;
};

}  // namespace gradtune
