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
#include <string>
#include <vector>

#include "engine/core/result.h"
#include "hooks/c10d/launcher.h"

namespace gradtune {

using GlooOptions = c10d::ProcessGroupGloo::Options;

// c10d's: of the interfaces that GLOO_SOCKET_IFNAME names, or, where it names none, of the one with the host's address.
// Asks the system to resolve the host's name, which may take long. Throws what c10d does, and check_interfaces's error.
c10::intrusive_ptr<GlooOptions> make_gloo_options(std::chrono::milliseconds timeout);

// An error where GLOO_SOCKET_IFNAME names what is no interface with an address; it says which there are. Cheap: to be
// asked before others wait for this rank.
core::Status check_interfaces(const Environment& environment);

// The address at which others are told to reach this rank, such as "198.18.0.1"; of several devices joined by commas.
std::string offered_address(const GlooOptions& options);
std::string offered_address();  // of what make_gloo_options would make

// One that leads back to the machine that uses it: of 127.0.0.0/8, ::1, or the name localhost.
bool is_loopback(const std::string& address);

// Why ranks may not reach each other at the addresses that they offered (in rank order, empty where a rank did not),
// and what to do about it: some are loopback ones though MASTER_ADDR is not, or they are of different networks, which
// is for people to see. Empty where there is nothing to tell.
std::string why_unreachable(const std::vector<std::string>& offered, int own_rank, const Environment& environment);

}  // namespace gradtune
