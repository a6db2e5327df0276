// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// A Communicator over a c10d backend (Gloo). Only this file knows c10d's collectives, their option structs and their
// version differences.
#pragma once

#include <c10/util/intrusive_ptr.h>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include <memory>
#include <string>

#include "engine/comm/communicator.h"

namespace gradtune {

std::unique_ptr<comm::Communicator> make_c10d_communicator(c10::intrusive_ptr<c10d::Backend> backend);

// Makes a separate Gloo backend over a prefix of the store; two groups must not share a prefix. It uses the
// interface that GLOO_SOCKET_IFNAME names, or else the one that the host name resolves to. Throws core::Exception,
// with one line, if not all ranks are connected within `connect_within_ms` (0: within the timeout of its
// collectives).
//
// Gloo writes to sockets whose peer may be gone. That raises SIGPIPE, which by default ends the process without a
// message. So the process ignores that signal from then on, as Python does, and the write returns an error. A
// handler that the process installed stays.
c10::intrusive_ptr<c10d::Backend> make_gloo_backend(const std::string& prefix,
                                                    const c10::intrusive_ptr<c10d::Store>& store, int rank, int size,
                                                    int64_t timeout_ms, int threads, int64_t connect_within_ms = 0);

}  // namespace gradtune
