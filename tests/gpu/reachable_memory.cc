// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// main() of tests that were written for the emulator, where a device reaches the host's memory. To make this work on
// a GPU, all allocations are in one block of pinned memory, and so is the stack of the thread that runs the tests.
// (No timed program has its memory here: a GPU reads this over its bus.)
#include <cuda_runtime.h>
#include <gtest/gtest.h>
#include <pthread.h>

#include <array>
#include <bit>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <mutex>
#include <new>

namespace {

// Blocks of 2^k bytes, cut from the front of a block of pinned memory and kept by size when they are free.
class PinnedHeap {
 public:
  static constexpr size_t kBytes = size_t{2} << 30;

  // Null if there is no GPU, or no room.
  void* allocate(size_t bytes, size_t alignment) {
    const std::lock_guard lock(mutex_);
    if (memory_ == nullptr) return nullptr;
    const int k = std::bit_width(std::max({bytes, alignment, kLeast}) - 1);
    if (Free*& first = free_[static_cast<size_t>(k)]; first != nullptr) {
      Free* const taken = first;
      first = first->next;
      return taken;
    }
    const size_t size = size_t{1} << k, begin = (used_ + size - 1) / size * size;
    if (begin + size > kBytes) return nullptr;
    used_ = begin + size;
    sizes_[begin / kLeast] = static_cast<uint8_t>(k);
    return memory_ + begin;
  }

  // Returns true if the memory was of this heap.
  bool free(void* data) {
    const auto offset = static_cast<size_t>(static_cast<std::byte*>(data) - memory_);
    if (memory_ == nullptr || data < memory_ || offset >= kBytes) return false;
    const std::lock_guard lock(mutex_);
    Free*& first = free_[sizes_[offset / kLeast]];
    first = new (data) Free{first};
    return true;
  }

  cudaError_t open() {
    void* data = nullptr;
    const cudaError_t code = cudaHostAlloc(&data, kBytes, cudaHostAllocPortable | cudaHostAllocMapped);
    if (code == cudaSuccess) memory_ = static_cast<std::byte*>(data);
    return code;
  }

 private:
  struct Free {
    Free* next;
  };
  static constexpr size_t kLeast = 64;

  std::mutex mutex_;
  std::byte* memory_ = nullptr;
  size_t used_ = 0;
  std::array<Free*, 64> free_{};
  std::array<uint8_t, kBytes / kLeast> sizes_{};
};
constinit PinnedHeap heap;

void* allocate(size_t bytes, size_t alignment) {
  if (void* const data = heap.allocate(bytes, alignment)) return data;
  const size_t size = (std::max<size_t>(bytes, 1) + alignment - 1) / alignment * alignment;
  if (void* const data = std::aligned_alloc(alignment, size)) return data;
  throw std::bad_alloc();
}

void release(void* data) {
  if (data != nullptr && !heap.free(data)) std::free(data);
}

}  // namespace

void* operator new(size_t bytes) { return allocate(bytes, alignof(std::max_align_t)); }
void* operator new(size_t bytes, std::align_val_t alignment) { return allocate(bytes, static_cast<size_t>(alignment)); }
void operator delete(void* data) noexcept { release(data); }
void operator delete(void* data, size_t) noexcept { release(data); }
void operator delete(void* data, std::align_val_t) noexcept { release(data); }
void operator delete(void* data, size_t, std::align_val_t) noexcept { release(data); }

int main(int argc, char** argv) {
  if (const cudaError_t code = heap.open(); code != cudaSuccess) {
    std::fprintf(stderr, "there is no GPU to test: %s\n", cudaGetErrorString(code));
    return 77;
  }
  testing::InitGoogleTest(&argc, argv);
  constexpr size_t kStack = size_t{64} << 20;
  pthread_attr_t attributes;
  pthread_attr_init(&attributes);
  pthread_attr_setstack(&attributes, heap.allocate(kStack, 4096), kStack);
  pthread_t thread;
  const auto run = [](void*) { return reinterpret_cast<void*>(static_cast<intptr_t>(RUN_ALL_TESTS())); };
  if (pthread_create(&thread, &attributes, run, nullptr) != 0) return 1;
  void* result = nullptr;
  pthread_join(thread, &result);
  return static_cast<int>(reinterpret_cast<intptr_t>(result));
}
