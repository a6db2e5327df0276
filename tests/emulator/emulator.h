// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// Runs CUDA kernels on one host thread, for tests. The C++ compiler takes the source that nvcc takes
// (tests/emulator/cuda.h has CUDA's names), and each CUDA thread is a fiber. A fiber runs until it has to wait for
// others, so a schedule chooses the order that a kernel may not rely on. It reports:
// - threads that meet in different places or never, and lanes outside of their mask
// - loads and stores of several words that are not aligned
// - in a build with ThreadSanitizer, races between threads, warps and blocks in shared and in global memory
//
// It does not model weak memory order, coalescing and bank conflicts, nor blocks that wait for each other: blocks run
// one after the other, so such a kernel never ends here.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <source_location>

namespace gradtune::emulator {

struct Index {
  unsigned x = 0, y = 0, z = 0;
};
struct Size {
  constexpr Size(unsigned width = 1, unsigned height = 1, unsigned depth = 1)  // NOLINT(google-explicit-constructor)
      : x(width), y(height), z(depth) {}

  unsigned x, y, z;
};

// The order in which runnable threads run, and blocks. A correct kernel writes the same bytes in all of them.
enum class Schedule : uint8_t {
  forward,   // first come, first served; blocks ascend
  reverse,   // the thread that met last continues first, so that warps get as far ahead as they can; blocks descend
  shuffled,  // random order, by the seed
};

// Applies to launches of the calling thread from now on.
void set_schedule(Schedule schedule, uint64_t seed = 0);

// Runs body once for each thread of the grid. An action that no kernel may do throws std::runtime_error, which names
// threads, blocks and lines; the remaining work of that block is lost.
void launch(Size grid, Size block, const std::function<void()>& body);

// --- For cuda.h: what a running thread asks for.

struct Position {
  Index thread, block;
  Size block_size, grid_size;
};
const Position& position();
unsigned lane();

// The input of a lane of a warp to a meeting, and its result.
struct Lane {
  uint64_t value, parameter, result;
};
using Combine = void (*)(Lane* lanes, uint32_t mask);
using Where = std::source_location;

// Waits until all lanes of the mask have come to the same place; the last one combines their values.
uint64_t meet(uint32_t mask, uint64_t value, uint64_t parameter, Combine combine, const Where& where);

// Waits for all threads of the block. Returns how many of them said true.
int barrier(bool predicate, const Where& where);

// Checks a load or a store of that many bytes at once.
void must_be_aligned(const void* address, size_t bytes, const Where& where);

// Memory of the block for a place in the source; it is filled with a pattern before each block.
void* shared_memory(const void* place, size_t bytes, size_t alignment);

// Each lane takes the value of the lane that its parameter names.
void exchange(Lane* lanes, uint32_t mask);

}  // namespace gradtune::emulator
