// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// Where a call's work runs. A host queue is the calling thread alone (placement `device` of a CPU job: the thread that
// runs backward) or a oneTBB arena (placement `host`); calls on it have completed when they return. Compressors cut
// their work into blocks whose limits do not depend on the number of threads, so results do not either.
#pragma once

#include <cstdint>
#include <memory>
#include <type_traits>

namespace gradtune::compress {

class Queue {
 public:
  virtual ~Queue() = default;

  // Calls body(context, i) once for each i in [0, blocks), in any order, possibly at the same time; returns when all
  // are done. Must not be called from inside a body.
  virtual void for_blocks(int64_t blocks, void (*body)(void* context, int64_t block), void* context) = 0;
  virtual int threads() const = 0;
};

// Runs body(i) for each block, without allocating.
template <typename Body>
void for_blocks(Queue& queue, int64_t blocks, Body&& body) {
  queue.for_blocks(
      blocks, [](void* context, int64_t block) { (*static_cast<std::remove_reference_t<Body>*>(context))(block); },
      &body);
}

// The calling thread alone.
std::unique_ptr<Queue> make_serial_queue();

// A oneTBB arena of that many threads, the calling one included.
std::unique_ptr<Queue> make_arena_queue(int threads);

}  // namespace gradtune::compress
