// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// How the work of one rank shares the rank's cores. Backward, what gradtune does on the same thread, the workers of the
// host, the threads that handle messages, and bytes inside a node, which the cores themselves move, all go on as slowly
// as there are too few cores for them (processor sharing). Bytes on the network go on as fast as the link has them, but
// while they do, the system needs a part of a core to copy and check them. Where a device computes, backward and what
// is placed there need no core. What something takes is told, and fitted, as if it had the cores for itself; ranks are
// alike, so what they take from each other is in that.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace gradtune::policies {

struct Cores {
  double of_rank = 0;    // that it has for itself; 0: not known, and nothing is taken to wait for one
  double computing = 0;  // of them, that backward keeps busy; 0: a device computes
  int host = 1;          // workers of placement `host`
  double network = 0;    // while bytes pass the network, for them

  bool operator==(const Cores&) const = default;
};

// Who needs cores.
enum class Worker : uint8_t { backward, device, host, messages, link_intra, network };
constexpr size_t kWorkers = 6;

// How fast each of those that are at work goes on, at most 1. Nobody is slow who is alone.
double speed(const Cores& cores, const std::array<bool, kWorkers>& at_work);

// When somebody was at work, in us since any moment.
struct AtWork {
  Worker worker = Worker::device;
  double begin_us = 0, end_us = 0;
};

// What somebody who was at work all the time had done by a moment, in us of having the cores for itself.
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
