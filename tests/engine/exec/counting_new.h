// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// A program that links counting_new.cc counts what it allocates.
#pragma once

#include <cstdint>

namespace gradtune::exec {

int64_t allocations_of_thread();  // calls of operator new, so far
int64_t live_bytes();             // of all threads, as the system's allocator rounds them

}  // namespace gradtune::exec
