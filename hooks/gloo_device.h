// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// What connections of a Gloo group run on: an interface, and a thread that waits for all of their sockets.
//
// That thread does nothing for a connection whose lock another thread holds, to send something, and asks at once again
// (gloo/transport/tcp/pair.cc, Pair::handleEvents). Where it has pushed that very thread off its core, as a thread that
// wakes up may, it asks until its time slice is over, which is 4 ms with the usual tick. So it is of the policy
// SCHED_BATCH: it runs as often as before, but pushes nobody off a core when it wakes up. Where ranks have many cores
// that changes nothing.
#pragma once

#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>

#include <memory>

namespace gradtune {

// Of the first interface that GLOO_SOCKET_IFNAME names, or, where it names none, of the one with the host's address.
// Throws what c10d does where there is no such interface.
std::shared_ptr<gloo::transport::Device> make_gloo_device();

}  // namespace gradtune
