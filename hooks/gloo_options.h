// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// What connections of a Gloo group run on: interfaces, each with a thread that waits for all of its sockets.
//
// That thread does nothing for a connection whose lock another thread holds, to send something, and asks at once again
// (gloo/transport/tcp/pair.cc, Pair::handleEvents). Where it has pushed that very thread off its core, as a thread that
// wakes up may, it asks until its time slice is over, up to a tick of the kernel. So it is of the policy SCHED_BATCH:
// waking up it pushes nobody off, but waits for a core that is free, or its turn. Benchmark "messages" tells what that
// is worth.
#pragma once

#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>

#include <chrono>

namespace gradtune {

// c10d's: of the interfaces that GLOO_SOCKET_IFNAME names, or, where it names none, of the one with the host's address.
// Throws what c10d does where there is no such interface.
c10::intrusive_ptr<c10d::ProcessGroupGloo::Options> make_gloo_options(std::chrono::milliseconds timeout);

}  // namespace gradtune
