// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// The means by which threads of an executor notify each other. A bounded ring of events takes no lock (D. Vyukov's
// bounded queue with a sequence number per cell, here with one consumer at a time). A turn decides which thread
// reads the ring, and a doorbell wakes a sleeping thread.
#pragma once

#include <atomic>
#include <bit>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>

#include "engine/core/result.h"

namespace gradtune::exec {

// Wakes one sleeping thread. The lock is only held around going to sleep and waking up.
class Doorbell {
 public:
  void ring() {
    if (rung_.exchange(true, std::memory_order_acq_rel)) return;
    // A thread that is about to sleep has either looked before this, or sleeps by now. The woken thread does not
    // have to wait for the lock.
    { const std::lock_guard lock(mutex_); }
    wake_.notify_one();
  }

  // Returns false if nobody rang within the time.
  bool wait_ms(int64_t timeout_ms) {
    if (rung_.exchange(false, std::memory_order_acq_rel)) return true;
    std::unique_lock lock(mutex_);
    return wake_.wait_for(lock, std::chrono::milliseconds(timeout_ms),
                          [&] { return rung_.exchange(false, std::memory_order_acq_rel); });
  }

 private:
  std::atomic<bool> rung_ = false;
  std::mutex mutex_;
  std::condition_variable wake_;
};

// Lets one of several threads at a time look at the things that any of them leaves. A turn never ends with something
// left unseen.
class Turn {
 public:
  // Calls look(), again as long as something was left meanwhile. If another thread has the turn, that thread calls
  // it instead.
  template <typename Look>
  void take(const Look& look) {
    if ((state_.fetch_or(kTaken | kLeft, std::memory_order_acq_rel) & kTaken) != 0) return;
    uint8_t nothing_left = 0;
    do {
      state_.fetch_and(kTaken, std::memory_order_acq_rel);
      look();
      nothing_left = kTaken;
    } while (!state_.compare_exchange_strong(nothing_left, 0, std::memory_order_acq_rel));
  }

  // Notes that something was left. Returns true if the thread that has the turn will look at it; otherwise the
  // caller has to take a turn.
  bool is_seen() { return (state_.fetch_or(kLeft, std::memory_order_acq_rel) & kTaken) != 0; }

 private:
  static constexpr uint8_t kTaken = 1, kLeft = 2;
  std::atomic<uint8_t> state_ = 0;
};

// Many producers, one consumer at a time. Pushing to a full ring is a programmer's error: the capacity covers all
// events that can be outstanding.
template <typename Event>
class EventRing {
 public:
  explicit EventRing(size_t least_capacity)
      : mask_(std::bit_ceil(least_capacity) - 1), cells_(std::make_unique<Cell[]>(mask_ + 1)) {
    for (size_t i = 0; i <= mask_; ++i) cells_[i].sequence.store(i, std::memory_order_relaxed);
  }

  size_t capacity() const { return mask_ + 1; }

  void push(const Event& event) {
    const size_t at = tail_.fetch_add(1, std::memory_order_relaxed);
    Cell& cell = cells_[at & mask_];
    core::check(cell.sequence.load(std::memory_order_acquire) == at, "the ring of executor events is full");
    cell.event = event;
    cell.sequence.store(at + 1, std::memory_order_release);
  }

  bool pop(Event& event) {
    Cell& cell = cells_[head_ & mask_];
    if (cell.sequence.load(std::memory_order_acquire) != head_ + 1) return false;
    event = cell.event;
    cell.sequence.store(head_ + mask_ + 1, std::memory_order_release);
    ++head_;
    return true;
  }

 private:
  struct Cell {
    std::atomic<size_t> sequence;
    Event event;
  };
  const size_t mask_;
  std::unique_ptr<Cell[]> cells_;
  alignas(64) std::atomic<size_t> tail_ = 0;
  alignas(64) size_t head_ = 0;
};

}  // namespace gradtune::exec
