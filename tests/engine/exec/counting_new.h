// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// A program that links counting_new.cc counts what it allocates, and may have the system refuse memory; but not under a
// sanitizer that has an allocator of its own.
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

// aligned_alloc succeeds so many times more, and fails once then.
void fail_aligned_alloc_after(int64_t calls);

}  // namespace gradtune::exec
