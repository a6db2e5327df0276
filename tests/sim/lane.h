// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// A thread of a simulated rank: it does its work one item after the other, and each item takes time.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <utility>

#include "tests/sim/world.h"

namespace gradtune::sim {

class Lane {
 public:
  // `on_idle` is called when nothing is left to do, and may add work.
  Lane(World& world, int rank, std::function<void()> on_idle)
      : world_(world), rank_(rank), on_idle_(std::move(on_idle)) {}

  // Adds work of that duration; `done` happens at its end.
  void add(int64_t work_ns, World::Event done) {
    waiting_.push_back({work_ns, std::move(done)});
    go_on();
  }
  // The same, but ahead of all waiting work.
  void add_first(int64_t work_ns, World::Event done) {
    waiting_.push_front({work_ns, std::move(done)});
    go_on();
  }

  // Stops the lane: it does no more work.
  void stop() { stopped_ = true; }

  void go_on() {
    if (busy_ || stopped_) return;
    if (waiting_.empty()) return on_idle_();
    busy_ = true;
    auto [work_ns, done] = std::move(waiting_.front());
    waiting_.pop_front();
    world_.after(world_.work_ns(rank_, work_ns), rank_, [this, done = std::move(done)] {
      if (stopped_) return;
      // The lane is still busy, so that work that `done` adds to the front precedes waiting work.
      done();
      busy_ = false;
      go_on();
    });
  }

 private:
  World& world_;
  const int rank_;
  const std::function<void()> on_idle_;
  std::deque<std::pair<int64_t, World::Event>> waiting_;
  bool busy_ = false;
  bool stopped_ = false;
};

}  // namespace gradtune::sim
