// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// Whether a store is still served, found out without asking the store: c10d's TCPStore writes a warning of thirty lines
// when its server is gone, which at the end of a job, when rank 0 has left before the others, is nothing to warn of.
#pragma once

#include <c10/util/intrusive_ptr.h>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include <chrono>

namespace gradtune {

// False where nobody accepts connections at the address of the TCPStore that is beneath this one, within the limit;
// true for stores of other kinds. What resolves host names may take longer, so ask it where waits have a deadline.
bool is_served(const c10::intrusive_ptr<c10d::Store>& store, std::chrono::milliseconds limit);

}  // namespace gradtune
