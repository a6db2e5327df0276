// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// A point in a queue's work: it stands for the work that was queued before it, and nothing else. A fence is cheap to
// copy; its source (a queue, a communicator) outlives it. An empty fence has passed.
#pragma once

#include <cstdint>
#include <optional>

#include "engine/core/result.h"

namespace gradtune::core {

class Fence {
 public:
  // Makes fences, and knows which of its points have passed. Called from any thread.
  class Source {
   public:
    virtual bool passed(uint64_t point) const = 0;
    virtual Status wait(uint64_t point, int64_t timeout_ms) const = 0;
    virtual std::optional<int64_t> time_ns(uint64_t point) const = 0;

   protected:
    ~Source() = default;
  };

  Fence() = default;
  Fence(const Source& source, uint64_t point) : source_(&source), point_(point) {}

  bool empty() const { return source_ == nullptr; }
  // Lets queues recognize fences of their own kind.
  const Source* source() const { return source_; }
  uint64_t point() const { return point_; }

  // Never blocks.
  bool passed() const { return source_ == nullptr || source_->passed(point_); }

  // Blocks the calling host thread. Returns an error: a timeout if the point has not passed by then, or the error
  // that ended the queue's work.
  Status wait(int64_t timeout_ms) const { return source_ == nullptr ? Status() : source_->wait(point_, timeout_ms); }

  // The time at which the point passed, by the executor's clock; nothing before that, and for an empty fence.
  std::optional<int64_t> time_ns() const { return source_ == nullptr ? std::nullopt : source_->time_ns(point_); }

  bool operator==(const Fence&) const = default;

 private:
  const Source* source_ = nullptr;
  uint64_t point_ = 0;
};

}  // namespace gradtune::core
