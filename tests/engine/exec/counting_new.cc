// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
#include "tests/engine/exec/counting_new.h"

#include <malloc.h>

#include <atomic>
#include <cstdlib>
#include <new>

namespace {
thread_local int64_t allocations = 0;
std::atomic<int64_t> bytes_in_use = 0;
std::atomic<int64_t> aligned_allocs_left = -1;  // calls until one fails; below 0: none does
}  // namespace

// In a separate file: a compiler that sees it together with its callers takes the pair for a mistake.
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
void* operator new(size_t bytes) {
  ++allocations;
  void* memory = std::malloc(bytes);
  if (memory == nullptr) throw std::bad_alloc();
  bytes_in_use += static_cast<int64_t>(malloc_usable_size(memory));
  return memory;
}
void operator delete(void* memory) noexcept {
  bytes_in_use -= static_cast<int64_t>(malloc_usable_size(memory));
  std::free(memory);
}
void operator delete(void* memory, size_t) noexcept { operator delete(memory); }

extern "C" void* aligned_alloc(size_t alignment, size_t bytes) noexcept {
  if (aligned_allocs_left >= 0 && aligned_allocs_left-- == 0) return nullptr;
  return memalign(alignment, bytes);
}
#endif

namespace gradtune::exec {

int64_t allocations_of_thread() { return allocations; }
int64_t live_bytes() { return bytes_in_use; }
void fail_aligned_alloc_after(int64_t calls) { aligned_allocs_left = calls; }

}  // namespace gradtune::exec
