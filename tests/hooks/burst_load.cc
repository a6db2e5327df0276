// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
#include "tests/hooks/burst_load.h"

#include <sched.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <cmath>
#include <csignal>
#include <stdexcept>
#include <utility>

#include "engine/core/rng.h"

namespace gradtune::test {
namespace {

constexpr double kShortest = 0.2, kLongest = 20;  // s

double now_s() {
  timespec now{};
  clock_gettime(CLOCK_MONOTONIC, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

void sleep_until(double end_s) {
  for (double left_s = end_s - now_s(); left_s > 0; left_s = end_s - now_s()) {
    timespec pause{};
    pause.tv_sec = static_cast<time_t>(left_s);
    pause.tv_nsec = static_cast<int64_t>(1e9 * (left_s - std::floor(left_s)));
    nanosleep(&pause, nullptr);
  }
}

// Runs in a child of a process that may have threads: nothing here allocates memory or takes a lock.
[[noreturn]] void run(core::Rng rng, double start_s, double time_limit_s) {
  bool is_busy = true;
  for (double end_s = start_s; now_s() < start_s + time_limit_s; is_busy = !is_busy) {
    end_s += kShortest * std::exp(rng.uniform() * std::log(kLongest / kShortest));
    if (!is_busy) sleep_until(end_s);
    while (now_s() < end_s) {
    }
  }
  _exit(0);
}

}  // namespace

void confine_to_cores(int cores) {
  cpu_set_t allowed, chosen;
  CPU_ZERO(&chosen);
  if (sched_getaffinity(0, sizeof allowed, &allowed) != 0) throw std::runtime_error("no cores are known");
  for (int core = 0; core < CPU_SETSIZE && CPU_COUNT(&chosen) < cores; ++core) {
    if (CPU_ISSET(core, &allowed)) CPU_SET(core, &chosen);
  }
  if (sched_setaffinity(0, sizeof chosen, &chosen) != 0) throw std::runtime_error("cores can not be chosen");
}

BurstLoad::BurstLoad(int cores, uint64_t seed, double time_limit_s) {
  const double start_s = now_s();
  for (int core = 0; core < cores; ++core) {
    const pid_t child = fork();
    if (child == 0) {
      prctl(PR_SET_PDEATHSIG, SIGKILL);
      run(core::Rng(seed), start_s, time_limit_s);
    }
    if (child > 0) children_.push_back(child);
  }
}

BurstLoad::~BurstLoad() {
  for (const pid_t child : children_) kill(child, SIGKILL);
  for (const pid_t child : children_) waitpid(child, nullptr, 0);
}

}  // namespace gradtune::test
