// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// The address of a store's server, and a test for a live server that does not use the store: c10d's TCPStore writes
// a warning of thirty lines when its server is gone. That is normal when rank 0 leaves before the others. When rank
// 0 has died, the caller that misses it reports it better.
#pragma once

#include <c10/util/intrusive_ptr.h>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include <chrono>
#include <string>

namespace gradtune {

// "HOST:PORT" of the TCPStore beneath this store; empty for stores of other kinds.
std::string address_of(const c10::intrusive_ptr<c10d::Store>& store);

// False if no server accepts connections at the address of the TCPStore beneath this store, within the limit. True
// for stores of other kinds. Resolving a host name may take longer than the limit, so call it where waits have a
// deadline.
bool is_served(const c10::intrusive_ptr<c10d::Store>& store, std::chrono::milliseconds limit);

}  // namespace gradtune
