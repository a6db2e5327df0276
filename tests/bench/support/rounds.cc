// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
#include "tests/bench/support/rounds.h"

#include <algorithm>
#include <chrono>

namespace gradtune::bench {
namespace {

constexpr double kSecondsPerRow = 0.12, kSecondsPerSample = 50e-6;
constexpr size_t kFewestSamples = 11;

double seconds_now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

double time_of(const std::function<void()>& call, int repeats) {
  const double start = seconds_now();
  for (int i = 0; i < repeats; ++i) call();
  return (seconds_now() - start) / repeats;
}

}  // namespace

double quantile(std::vector<double> values, double share) {
  std::sort(values.begin(), values.end());
  return values[static_cast<size_t>(share * static_cast<double>(values.size() - 1) + 0.5)];
}

int repeats_of(const std::function<void()>& call) {
  return std::max(1, static_cast<int>(kSecondsPerSample / time_of(call, 1)));
}

std::vector<std::vector<double>> rounds_of(const std::vector<std::function<void()>>& turns, int repeats) {
  std::vector<std::vector<double>> times(turns.size());
  // In another order each time: the next one has to write back the caches of the one before.
  const double end = seconds_now() + kSecondsPerRow;
  for (size_t turn = 0; times.back().size() < kFewestSamples || seconds_now() < end; ++turn) {
    for (size_t i = 0; i < turns.size(); ++i) {
      const size_t which = (turn + i) % turns.size();
      times[which].push_back(time_of(turns[which], repeats));
    }
  }
  return times;
}

}  // namespace gradtune::bench
