// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// The building blocks of kernels. They use the part of CUDA C++ that tests/emulator/cuda.h knows. So a C++ compiler
// takes the same sources, with that header ahead of them, and tests run them on the host. All differences between the
// two compilers are in this file.
//
// Blocks and warps wait for each other by barriers alone, and no call waits for the device or allocates. Products and
// sums are rounded separately, as on the host (nvcc's -fmad=false), so that payloads are the same bytes.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "engine/compress/queue.h"
#include "engine/core/result.h"

#ifdef __CUDACC__
#include <cuda_runtime.h>
// A block's shared memory, which is one object: it is not cleared.
#define GRADTUNE_SHARED(type, name) __shared__ type name
// A kernel's one parameter.
#define GRADTUNE_PARAMETER(...) const __grid_constant__ __VA_ARGS__
#define GRADTUNE_NOINLINE __noinline__
#else
#define GRADTUNE_PARAMETER(...) const __VA_ARGS__&
#define GRADTUNE_NOINLINE __attribute__((noinline))
#endif

namespace gradtune::compress::cuda {

inline constexpr unsigned kThreads = 256, kWarps = kThreads / 32;
inline constexpr uint32_t kAllLanes = 0xffffffff;

#ifdef __CUDACC__
inline core::Error error_of(cudaError_t code, const std::string& what) {
  return {core::Error::Code::io, "CUDA says " + std::string(cudaGetErrorString(code)) + " (at " + what + ")"};
}

inline void must(cudaError_t code, const char* what) {
  if (code != cudaSuccess) throw core::Exception(error_of(code, what));
}

// Makes a device the calling thread's current one for a while. A stream only takes kernels from threads whose current
// device is its own.
class OnDevice {
 public:
  explicit OnDevice(int device) {
    must(cudaGetDevice(&before_), "cudaGetDevice");
    is_other_ = device != before_;
    if (is_other_) must(cudaSetDevice(device), "cudaSetDevice");
  }
  ~OnDevice() {
    if (is_other_) static_cast<void>(cudaSetDevice(before_));
  }
  OnDevice(const OnDevice&) = delete;
  OnDevice& operator=(const OnDevice&) = delete;

 private:
  int before_ = 0;
  bool is_other_ = false;
};
#endif

// Several jobs in one launch: the grid's blocks are theirs in turn.
inline constexpr size_t kParameterBytes = 4096;
template <class Job>
struct Batch {
  static constexpr size_t kMost = std::min<size_t>(24, (kParameterBytes - 16) / (sizeof(Job) + sizeof(uint32_t)));
  static_assert(kMost >= 1 && sizeof(Job) % 8 == 0);

  Job jobs[kMost];
  uint32_t ends[kMost];  // of the blocks of each, counted from the first block of all
};

// A kernel is a class with a Job and run(job, block), which threads of that block of the job call: kThreads of them. It
// may say how many blocks of it an SM has at least at once; the compiler, which else chooses, may then use as many
// registers as they leave.
template <class Kernel>
constexpr unsigned least_blocks_of() {
  if constexpr (requires { Kernel::kLeastBlocks; }) return Kernel::kLeastBlocks;
  return 0;
}
template <class Kernel>
__global__ void __launch_bounds__(kThreads, least_blocks_of<Kernel>())
    run_batch(GRADTUNE_PARAMETER(Batch<typename Kernel::Job>) batch) {
  uint32_t block = blockIdx.x;
  int job = 0;
  while (block >= batch.ends[job]) ++job;
  if (job > 0) block -= batch.ends[job - 1];
  Kernel::run(batch.jobs[job], block);
}

// Gathers jobs, and launches a kernel whenever there is no room for more, or at last.
template <class Kernel>
class Launches {
 public:
  using Job = typename Kernel::Job;

  explicit Launches(Queue& queue) : queue_(queue) {}
  Launches(const Launches&) = delete;
  Launches& operator=(const Launches&) = delete;

  // By so many blocks; of none there is nothing to do.
  void add(const Job& job, int64_t blocks) {
    if (blocks == 0) return;
    core::check(blocks <= kMostBlocks, "a launch has a grid of one dimension");
    if (count_ == Batch<Job>::kMost || blocks_ + blocks > kMostBlocks) finish();
    batch_.jobs[count_] = job;
    blocks_ += blocks;
    batch_.ends[count_++] = static_cast<uint32_t>(blocks_);
  }

  void finish() {
    if (count_ == 0) return;
    for (size_t i = count_; i < Batch<Job>::kMost; ++i) batch_.ends[i] = batch_.ends[count_ - 1];
    const auto blocks = static_cast<uint32_t>(blocks_);
#ifdef __CUDACC__
    const OnDevice here(device(queue_).device());
    run_batch<Kernel><<<blocks, kThreads, 0, static_cast<cudaStream_t>(device(queue_).stream())>>>(batch_);
    must(cudaGetLastError(), "the launch of a kernel");
#else
    core::check(queue_.space() == core::Space::cuda, "kernels go to the queue of a device");
    emulator::launch(blocks, kThreads, [&] { run_batch<Kernel>(batch_); });
#endif
    count_ = 0;
    blocks_ = 0;
  }

 private:
  static constexpr int64_t kMostBlocks = INT32_MAX;

  Queue& queue_;
  Batch<Job> batch_;
  size_t count_ = 0;
  int64_t blocks_ = 0;
};

// Ok if kernels were compiled for that device; the error says why not.
template <class Kernel>
core::Status can_run(int device) {
#ifdef __CUDACC__
  try {
    const OnDevice here(device);
    cudaFuncAttributes attributes;
    must(cudaFuncGetAttributes(&attributes, run_batch<Kernel>), "a kernel");
  } catch (const core::Exception& failed) {
    static_cast<void>(cudaGetLastError());  // or the next call would report it again
    return core::Error{failed.code(), failed.what()};
  }
#else
  static_cast<void>(device);
#endif
  return {};
}

constexpr int64_t blocks_of(int64_t n, int64_t each) { return (n + each - 1) / each; }

}  // namespace gradtune::compress::cuda
