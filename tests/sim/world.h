// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// A world of simulated ranks in one process and one thread: a clock that jumps from event to event, and one network
// link per rank. All randomness comes from one seed, so the same seed gives the same events at the same times. The
// owners of ranks put their actions into the world as events; group.h has the communication between ranks.
#pragma once

#include <cstdint>
#include <functional>
#include <string_view>
#include <vector>

#include "engine/core/clock.h"
#include "engine/core/hash.h"
#include "engine/core/rng.h"

namespace gradtune::sim {

// The speed of a rank and its link.
struct RankModel {
  double bytes_per_second = 125e6;  // in each direction
  int64_t latency_ns = 50'000;      // of one message
  double slowdown = 1;              // of its computation
};

struct WorldOptions {
  int size = 2;
  uint64_t seed = 0;
  RankModel rank = {};  // of every rank, until set_rank

  // A completion reaches a rank up to `jitter_ns` late, and with this probability up to `stall_ns`: collectives that
  // are under way together then complete in any order.
  int64_t jitter_ns = 0;
  double stall_probability = 0;
  int64_t stall_ns = 0;
};

class World {
 public:
  explicit World(const WorldOptions& options);

  const WorldOptions& options() const { return options_; }
  int size() const { return options_.size; }
  const core::Clock& clock() const { return clock_; }
  int64_t now_ns() const { return clock_.now_ns(); }

  // Adds an event of a rank (or, with -1, of none) to the world. Events at the same time happen in the order of
  // these calls.
  using Event = std::function<void()>;
  void at(int64_t time_ns, int rank, Event event);
  void after(int64_t delay_ns, int rank, Event event) { at(now_ns() + delay_ns, rank, std::move(event)); }

  // Runs the next event; returns false if none is left.
  bool run_next();
  void run_until(int64_t time_ns);
  void run_all();

  const RankModel& rank(int rank) const { return ranks_[static_cast<size_t>(rank)].model; }
  void set_rank(int rank, const RankModel& model) { ranks_[static_cast<size_t>(rank)].model = model; }

  // The time that this rank needs for work that takes `work_ns` on a rank without slowdown.
  int64_t work_ns(int rank, int64_t work_ns) const;

  // From now on no event of that rank happens. Nobody is told.
  void crash(int rank) { ranks_[static_cast<size_t>(rank)].crashed = true; }
  bool crashed(int rank) const { return ranks_[static_cast<size_t>(rank)].crashed; }

  // Returns the end of a collective in which every rank sends that many bytes, in that many messages one after the
  // other. It keeps the links busy for its bytes: they are one queue for all groups, in the order of these calls.
  int64_t reserve_links_ns(int64_t bytes_per_rank, int messages);
  int64_t draw_delay_ns();

  // A hash of all notes, in order: two runs with the same hash did the same at the same times.
  void note(int rank, std::string_view what, uint64_t value);
  uint64_t trace_hash() const { return trace_.value(); }

 private:
  class SimClock final : public core::Clock {
   public:
    int64_t now_ns() const override { return now_ns_; }
    void jump(int64_t time_ns) { now_ns_ = time_ns; }

   private:
    int64_t now_ns_ = 0;
  };
  struct Entry {
    int64_t time_ns;
    uint64_t number;  // of the call
    int rank;
    Event event;
  };
  static bool later(const Entry& a, const Entry& b) {
    return a.time_ns != b.time_ns ? a.time_ns > b.time_ns : a.number > b.number;
  }
  struct Rank {
    RankModel model;
    bool crashed = false;
    int64_t link_free_ns = 0;
  };

  const WorldOptions options_;
  SimClock clock_;
  core::Rng delays_;
  std::vector<Rank> ranks_;
  std::vector<Entry> events_;  // a heap, the next one first
  uint64_t calls_ = 0;
  core::Hasher trace_;
};

}  // namespace gradtune::sim
