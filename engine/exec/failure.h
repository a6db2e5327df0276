// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// The first error of an executor. Any of its threads may meet it; it is final.
#pragma once

#include <atomic>
#include <mutex>

#include "engine/core/result.h"
#include "engine/exec/event_ring.h"

namespace gradtune::exec {

class Failure {
 public:
  // The bell rings at the first error; it is that of the thread that waits for steps.
  explicit Failure(Doorbell& bell) : bell_(bell) {}

  bool has_happened() const { return has_happened_; }
  // Does nothing after the first error.
  void note(core::Error error) noexcept;
  // An exception from `body` becomes the error. Returns true if there was none.
  template <typename Body>
  bool guards(const char* where, const Body& body) noexcept {
    try {
      body();
      return true;
    } catch (...) {
      note(core::caught_error(where));
      return false;
    }
  }

  // The first error; there must be one.
  core::Error error();

 private:
  Doorbell& bell_;
  std::atomic<bool> has_happened_ = false;
  std::mutex mutex_;
  core::Error error_{};
};

}  // namespace gradtune::exec
