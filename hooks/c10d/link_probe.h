// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// What a message and a byte take on a link that is idle. A job's first steps have few collectives, and large ones,
// which tell little of messages; they are sums of gradients, whose bytes may wait for each other on a long link; and
// nothing goes over the links inside nodes alone.
#pragma once

#include <cstdint>
#include <functional>

#include "engine/comm/communicator.h"
#include "engine/core/clock.h"
#include "engine/exec/device.h"
#include "policies/cost/cost_table.h"

namespace gradtune {

struct ProbedLink {
  comm::Communicator& communicator;  // with nothing else under way
  const core::Clock& clock;
  int64_t timeout_ms;                         // of each collective
  const std::function<core::Status()> alarm;  // as that of comm::run
  exec::Device* device = nullptr;             // of the communicator's buffers; null: they are the host's
};

// Over all ranks of the communicator. All-gathers of a few bytes, one by one and several at once: what several take
// more than one is what the link, or a core, is busy with. Then, unless `most_bytes` is 0, larger ones, which leave at
// most as many bytes at each rank. Some milliseconds, where nothing is far away or slow, and else a few times 20 ms and
// a few dozen messages; all ranks run equally many. Throws core::Exception.
struct Probed {
  policies::IdleLink link;
  double cores = 0;  // that this process kept busy while bytes were on their way; 0 where they are a device's
};
Probed probe_link(const ProbedLink& link, int64_t most_bytes);

}  // namespace gradtune
