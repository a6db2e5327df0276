// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// Where a store is served; and whether it still is, found out without asking the store: c10d's TCPStore writes a
// warning of thirty lines when its server is gone. That is nothing to warn of when rank 0 has left before the others,
// and told better by who misses it where rank 0 has died.
#pragma once

#include <c10/util/intrusive_ptr.h>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include <chrono>
#include <string>

namespace gradtune {

// "HOST:PORT" of the TCPStore that is beneath this one; empty for stores of other kinds.
std::string address_of(const c10::intrusive_ptr<c10d::Store>& store);

// False where nobody accepts connections at the address of the TCPStore that is beneath this one, within the limit;
// true for stores of other kinds. What resolves host names may take longer, so ask it where waits have a deadline.
bool is_served(const c10::intrusive_ptr<c10d::Store>& store, std::chrono::milliseconds limit);

}  // namespace gradtune
