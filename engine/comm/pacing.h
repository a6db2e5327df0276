// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// A communicator that is as slow as a network: another communicator does the work, and completions are reported no
// earlier than over a link of the given speed. It replaces a real link in tests and simulations. It does not model
// the other effects of a slow link (losses, contention between ranks, cores that are busy with sending).
//
// A link belongs to one rank, and all communicators of that rank share it, as they would share its network card.
// Each direction is one queue, served in the order of calls. Each communicator starts one thread of its own, which
// reports completions that had to wait.
#pragma once

#include <cstdint>
#include <memory>

#include "engine/comm/communicator.h"
#include "engine/core/clock.h"

namespace gradtune::comm {

struct LinkSpeed {
  double bytes_per_second = 0;  // in each direction, > 0
  int64_t latency_ns = 0;       // added once to each collective
};

class PacedLink;

// The clock must outlive the link; the communicators keep the link alive.
std::shared_ptr<PacedLink> make_paced_link(const LinkSpeed& speed, const core::Clock& clock);

// Sets the speed of all later transfers, to model a link whose speed varies or changes for good. Called from any
// thread.
void set_speed(PacedLink& link, const LinkSpeed& speed);

// A collective that the modelled link cannot finish by its deadline ends in a timeout at that deadline, as on a real
// link.
std::unique_ptr<Communicator> make_paced(std::unique_ptr<Communicator> inner, std::shared_ptr<PacedLink> link);

}  // namespace gradtune::comm
