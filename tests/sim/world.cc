// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
#include "tests/sim/world.h"

#include <algorithm>
#include <utility>

#include "engine/core/result.h"

namespace gradtune::sim {

World::World(const WorldOptions& options)
    : options_(options),
      delays_(core::Rng(options.seed).fork("delays")),
      ranks_(static_cast<size_t>(options.size), Rank{.model = options.rank}) {}

void World::at(int64_t time_ns, int rank, Event event) {
  core::check(time_ns >= now_ns(), "an event lies in the future");
  events_.push_back({time_ns, calls_++, rank, std::move(event)});
  std::push_heap(events_.begin(), events_.end(), later);
}

bool World::run_next() {
  if (events_.empty()) return false;
  std::pop_heap(events_.begin(), events_.end(), later);
  const Entry next = std::move(events_.back());
  events_.pop_back();
  clock_.jump(next.time_ns);
  if (next.rank < 0 || !crashed(next.rank)) next.event();
  return true;
}

void World::run_until(int64_t time_ns) {
  while (!events_.empty() && events_.front().time_ns <= time_ns) run_next();
  clock_.jump(std::max(now_ns(), time_ns));
}

void World::run_all() {
  while (run_next()) {
  }
}

int64_t World::work_ns(int rank, int64_t work_ns) const {
  return static_cast<int64_t>(static_cast<double>(work_ns) * this->rank(rank).slowdown);
}

int64_t World::reserve_links_ns(int64_t bytes_per_rank, int messages) {
  int64_t begin_ns = now_ns(), end_ns = 0;
  for (const Rank& rank : ranks_) begin_ns = std::max(begin_ns, rank.link_free_ns);
  for (Rank& rank : ranks_) {
    const double seconds = static_cast<double>(bytes_per_rank) / rank.model.bytes_per_second;
    rank.link_free_ns = begin_ns + static_cast<int64_t>(seconds * 1e9);
    end_ns = std::max(end_ns, rank.link_free_ns + messages * rank.model.latency_ns);
  }
  return end_ns;
}

int64_t World::draw_delay_ns() {
  const auto up_to = [&](int64_t most_ns) {
    return most_ns > 0 ? static_cast<int64_t>(delays_.below(static_cast<uint64_t>(most_ns))) : 0;
  };
  const int64_t delay_ns = up_to(options_.jitter_ns);
  return delays_.uniform() < options_.stall_probability ? delay_ns + up_to(options_.stall_ns) : delay_ns;
}

void World::note(int rank, std::string_view what, uint64_t value) {
  trace_.add(static_cast<uint64_t>(now_ns()));
  trace_.add(static_cast<uint64_t>(rank));
  trace_.add(what);
  trace_.add(value);
}

}  // namespace gradtune::sim
