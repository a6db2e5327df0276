// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// Models how the work of one rank shares the rank's cores. If there are too few cores, all work that needs them
// slows down alike (processor sharing). This work is backward, gradtune's work on the same thread, the host's
// workers, the threads that handle messages, and bytes inside a node, which the cores move. Bytes on the network
// move at the link's speed, but meanwhile the system needs a part of a core to copy and check them. If a device
// computes, backward and the work placed there need no core. Times are given, and fitted, as if each kind of work
// had the cores for itself. All ranks behave alike, so the cores that they take from each other are included.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace gradtune::policies {

struct Cores {
  double of_rank = 0;    // cores that the rank has for itself; 0: unknown, and no work waits for a core
  double computing = 0;  // cores of these that backward keeps busy; 0: a device computes
  int host = 1;          // workers of placement `host`
  double network = 0;    // cores that are needed while bytes pass the network

  bool operator==(const Cores&) const = default;
};

// The kinds of work that need cores.
enum class Worker : uint8_t { backward, device, host, messages, link_intra, network };
constexpr size_t kWorkers = 6;

// The speed, at most 1, of each kind that is at work. A kind that works alone has speed 1.
double speed(const Cores& cores, const std::array<bool, kWorkers>& at_work);

// An interval in which one kind was at work, in us from a common start.
struct AtWork {
  Worker worker = Worker::device;
  double begin_us = 0, end_us = 0;
};

// The amount of work that a kind at work all the time has done by a given moment, in us of having the cores for
// itself.
class WorkClock {
 public:
  WorkClock(const Cores& cores, const std::vector<AtWork>& all);

  double at(double us) const;

 private:
  struct Moment {
    double us, work_us;
    double speed;  // from then on
  };
  std::vector<Moment> moments_;  // ascending
};

}  // namespace gradtune::policies
