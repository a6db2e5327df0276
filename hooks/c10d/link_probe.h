// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// Measures the cost of a message and of a byte on an idle link. A job's first steps cannot show this. They have few,
// large collectives, which tell little about the cost of a message. These collectives are sums of gradients, whose
// bytes may queue behind each other on a slow link. And no traffic goes only over the links inside nodes.
#pragma once

#include <cstdint>
#include <functional>

#include "engine/comm/communicator.h"
#include "engine/core/clock.h"
#include "engine/exec/device.h"
#include "policies/cost/cost_table.h"

namespace gradtune {

struct ProbedLink {
  comm::Communicator& communicator;  // without other work in flight
  const core::Clock& clock;
  int64_t timeout_ms;                         // of each collective
  const std::function<core::Status()> alarm;  // as for comm::run
  exec::Device* device = nullptr;             // the device that holds the communicator's buffers; null: the host
};

// Measures over all ranks of the communicator. First come all-gathers of a few bytes, one at a time and several at
// once; the extra time of several is the time for which the link, or a core, is busy. The communicator is told of the
// delay. Then, unless `most_bytes` is 0, come larger ones that leave at most that many bytes at each rank. This takes
// some milliseconds if all ranks are near and fast, and otherwise a few times 20 ms and a few dozen messages. All ranks
// run the same number, and find the same times, which are means over ranks. Throws core::Exception.
struct Probed {
  policies::IdleLink link;
  double cores =
      0;  // the number of cores that this process kept busy during transfers; 0 if the buffers are on a device
};
Probed probe_link(const ProbedLink& link, int64_t most_bytes);

}  // namespace gradtune
