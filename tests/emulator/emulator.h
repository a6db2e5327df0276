// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// Runs CUDA kernels on one host thread, for tests: the C++ compiler takes the source that nvcc takes (tests/emulator/
// cuda.h has CUDA's names), and each CUDA thread is a fiber. A fiber runs until it has to wait for others, so the order
// that a kernel may not rely on is chosen by a schedule. Reported are threads that meet in different places or never,
// lanes outside of their mask, loads and stores of several words that are not aligned, and, in a build with
// ThreadSanitizer, races between threads, warps and blocks in shared and in global memory. Not modelled: weak memory
// order, coalescing, bank conflicts, and blocks that wait for each other (blocks run one after the other, so such a
// kernel never ends here).
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

// In which order threads run that may, and blocks. A right kernel writes the same bytes in all of them.
enum class Schedule : uint8_t {
  forward,   // first come, first served; blocks ascend
  reverse,   // who met last goes on first, so that warps get as far ahead as they can; blocks descend
  shuffled,  // at random, by the seed
};

// Of launches of the calling thread from now on.
void set_schedule(Schedule schedule, uint64_t seed = 0);

// Runs body once for each thread of the grid. Throws std::runtime_error, which names threads, blocks and lines, for
// what no kernel may do; what the other threads of that block would have done is lost.
void launch(Size grid, Size block, const std::function<void()>& body);

// --- For cuda.h: what a running thread asks for.

struct Position {
  Index thread, block;
  Size block_size, grid_size;
};
const Position& position();
unsigned lane();

// What a lane of a warp brings to a meeting, and takes from it.
struct Lane {
  uint64_t value, parameter, result;
};
using Combine = void (*)(Lane* lanes, uint32_t mask);
using Where = std::source_location;

// Waits until all lanes of the mask have come to the same place; the last one combines what they brought.
uint64_t meet(uint32_t mask, uint64_t value, uint64_t parameter, Combine combine, const Where& where);

// Waits for all threads of the block. How many of them said true.
int barrier(bool predicate, const Where& where);

// Of a load or a store of that many bytes at once.
void must_be_aligned(const void* address, size_t bytes, const Where& where);

// Memory of the block that belongs to a place in the source; filled with a pattern before each block.
void* shared_memory(const void* place, size_t bytes, size_t alignment);

// Each lane takes the value of the lane that its parameter names.
void exchange(Lane* lanes, uint32_t mask);

}  // namespace gradtune::emulator
