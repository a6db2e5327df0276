// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// The network devices of a Gloo group: interfaces, each with a thread that waits for all of its sockets.
//
// When another thread holds a connection's lock to send, that thread does nothing for the connection and polls again
// at once (gloo/transport/tcp/pair.cc, Pair::handleEvents). If it has preempted that very thread on its core, as a
// thread that wakes up may, it polls until its time slice ends, up to one tick of the kernel. So it gets the policy
// SCHED_BATCH: when it wakes up it preempts no thread, but waits for a free core or for its turn. The benchmark
// "messages" measures the effect.
#pragma once

#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>

#include <chrono>
#include <string>
#include <vector>

#include "engine/core/result.h"
#include "hooks/c10d/launcher.h"

namespace gradtune {

using GlooOptions = c10d::ProcessGroupGloo::Options;

// The options of c10d for the interfaces that GLOO_SOCKET_IFNAME names, or else for the one with the host's address.
// Resolves the host's name, which may take long. Throws the exceptions of c10d and the error of check_interfaces.
c10::intrusive_ptr<GlooOptions> make_gloo_options(std::chrono::milliseconds timeout);

// An error if GLOO_SOCKET_IFNAME names something that is not an interface with an address; it lists the ones that
// exist. Cheap, so that it can run before other ranks wait for this one.
core::Status check_interfaces(const Environment& environment);

// The address at which other ranks are told to reach this one, such as "198.18.0.1"; with several devices, addresses
// joined by commas.
std::string offered_address(const GlooOptions& options);
std::string offered_address();  // for the options that make_gloo_options would make

// True if the address leads back to the machine that uses it: in 127.0.0.0/8, ::1, or the name localhost.
bool is_loopback(const std::string& address);

// Explains why ranks may not reach each other at the addresses that they offered, and what to do about it. `offered`
// is in rank order, with an empty text for a rank that offered none. It reports loopback addresses if MASTER_ADDR is
// not one, and addresses of different networks, which people have to judge. Empty if there is nothing to report.
std::string why_unreachable(const std::vector<std::string>& offered, int own_rank, const Environment& environment);

}  // namespace gradtune
