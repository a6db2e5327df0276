// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
#include "policies/cost/core_sharing.h"

#include <algorithm>
#include <iterator>

namespace gradtune::policies {

double speed(const Cores& cores, const std::array<bool, kWorkers>& at_work) {
  if (!(cores.of_rank > 0)) return 1;
  const std::array<double, kWorkers> needs = {
      cores.computing, cores.computing > 0 ? 1.0 : 0.0, static_cast<double>(cores.host), 1, 1, cores.network};
  double needed = 0, most = cores.of_rank;
  for (size_t worker = 0; worker < kWorkers; ++worker) {
    most = std::max(most, needs[worker]);
    if (at_work[worker]) needed += needs[worker];
  }
  return needed > most ? most / needed : 1;
}

WorkClock::WorkClock(const Cores& cores, const std::vector<AtWork>& all) {
  struct Change {
    double us;
    Worker worker;
    int by;
  };
  std::vector<Change> changes;
  for (const AtWork& each : all) {
    if (!(each.begin_us < each.end_us)) continue;
    changes.push_back({each.begin_us, each.worker, 1});
    changes.push_back({each.end_us, each.worker, -1});
  }
  std::ranges::stable_sort(changes, {}, &Change::us);
  std::array<int, kWorkers> under_way{};
  std::array<bool, kWorkers> at_work{};
  Moment last{0, 0, 1};
  moments_.push_back(last);
  for (const Change& change : changes) {
    const auto worker = static_cast<size_t>(change.worker);
    under_way[worker] += change.by;
    at_work[worker] = under_way[worker] > 0;
    last = {change.us, last.work_us + (change.us - last.us) * last.speed, speed(cores, at_work)};
    moments_.push_back(last);
  }
}

double WorkClock::at(double us) const {
  const auto after = std::ranges::upper_bound(moments_, us, {}, &Moment::us);
  const Moment& before = after == moments_.begin() ? *after : *std::prev(after);
  return before.work_us + (us - before.us) * before.speed;
}

}  // namespace gradtune::policies
