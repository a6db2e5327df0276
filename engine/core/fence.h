// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// A point in a queue's work: what was asked for before it, and nothing else. A value that costs nothing to copy;
// whoever made it (a queue, a communicator) outlives it. An empty fence has passed.
#pragma once

#include <cstdint>
#include <optional>

#include "engine/core/result.h"

namespace gradtune::core {

class Fence {
 public:
  // Makes fences, and knows of each of its points whether it has passed. Called from any thread.
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
  // For queues that know each other.
  const Source* source() const { return source_; }
  uint64_t point() const { return point_; }

  // Never blocks.
  bool passed() const { return source_ == nullptr || source_->passed(point_); }

  // Blocks the calling host thread. An error (timeout) where the point has not passed by then, or whatever ended the
  // queue's work.
  Status wait(int64_t timeout_ms) const { return source_ == nullptr ? Status() : source_->wait(point_, timeout_ms); }

  // When the point passed, by the executor's clock. Nothing before that, and of an empty fence.
  std::optional<int64_t> time_ns() const { return source_ == nullptr ? std::nullopt : source_->time_ns(point_); }

  bool operator==(const Fence&) const = default;

 private:
  const Source* source_ = nullptr;
  uint64_t point_ = 0;
};

}  // namespace gradtune::core
