// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// A communicator that is as slow as a network: it lets another one do the work and tells a completion no earlier than a
// link of that speed would have. For where a real link can not be had; what it leaves out is what else a slow link does
// (losses, contention between ranks, cores that are busy with sending).
//
// A link belongs to one rank, and all communicators of that rank go through it, as they would through its network card:
// in each direction one queue, served in the order of calls. It starts one thread of its own, which tells completions
// that had to wait.
#pragma once

#include <cstdint>
#include <memory>

#include "engine/comm/communicator.h"
#include "engine/core/clock.h"

namespace gradtune::comm {

struct LinkSpeed {
  double bytes_per_second = 0;  // in each direction, > 0
  int64_t latency_ns = 0;       // of each collective, once
};

class PacedLink;

// The clock must outlive the link, and the link is kept by its communicators.
std::shared_ptr<PacedLink> make_paced_link(const LinkSpeed& speed, const core::Clock& clock);

// What is asked for from now on travels at that speed: a link that wobbles, or changes for good. From any thread.
void set_speed(PacedLink& link, const LinkSpeed& speed);

// A collective that the modelled link can not finish by its deadline ends in a timeout at that deadline, as on a real
// one.
std::unique_ptr<Communicator> make_paced(std::unique_ptr<Communicator> inner, std::shared_ptr<PacedLink> link);

}  // namespace gradtune::comm
