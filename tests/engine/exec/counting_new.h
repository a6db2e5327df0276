// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// A program that links counting_new.cc counts its allocations, and can make the system refuse memory. It does not
// work under a sanitizer that has its own allocator.
#pragma once

#include <cstdint>

namespace gradtune::exec {

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr bool kCountsAllocations = false;
#else
constexpr bool kCountsAllocations = true;
#endif

int64_t allocations_of_thread();  // calls of operator new, so far
int64_t live_bytes();             // of all threads, as the system's allocator rounds them

// aligned_alloc succeeds this many times more, and then fails once.
void fail_aligned_alloc_after(int64_t calls);

}  // namespace gradtune::exec
