// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
#include "engine/compress/queue.h"

#include <tbb/parallel_for.h>
#include <tbb/task_arena.h>

#include <cstring>

#include "engine/core/result.h"

#ifdef __SANITIZE_THREAD__
#include <sanitizer/tsan_interface.h>
#endif

namespace gradtune::compress {
namespace {

// Tells ThreadSanitizer about the order of tasks, since the oneTBB library is not instrumented. A body runs after its
// caller's earlier work, and the caller goes on after all bodies. Without the sanitizer the class does nothing.
class TaskOrder {
 public:
#ifdef __SANITIZE_THREAD__
  void release() { __tsan_release(this); }
  void acquire() { __tsan_acquire(this); }
#else
  void release() {}
  void acquire() {}
#endif
};

class SerialQueue final : public HostQueue {
 public:
  void for_blocks(int64_t blocks, void (*body)(void* context, int64_t block), void* context) override {
    for (int64_t block = 0; block < blocks; ++block) body(context, block);
  }
  int threads() const override { return 1; }
};

class ArenaQueue final : public HostQueue {
 public:
  explicit ArenaQueue(int threads) : arena_(threads) {}

  void for_blocks(int64_t blocks, void (*body)(void* context, int64_t block), void* context) override {
    if (blocks == 1) return body(context, 0);  // not worth entering the arena
    TaskOrder order;
    order.release();
    arena_.execute([&] {
      tbb::parallel_for(int64_t{0}, blocks, [&](int64_t block) {
        order.acquire();
        body(context, block);
        order.release();
      });
    });
    order.acquire();
  }
  int threads() const override { return arena_.max_concurrency(); }

 private:
  tbb::task_arena arena_;
};

}  // namespace

void HostQueue::copy(void* to, const void* from, int64_t bytes) {
  if (bytes > 0) std::memcpy(to, from, static_cast<size_t>(bytes));
}

void HostQueue::fill(void* to, std::byte value, int64_t bytes) {
  if (bytes > 0) std::memset(to, std::to_integer<int>(value), static_cast<size_t>(bytes));
}

std::unique_ptr<HostQueue> make_serial_queue() { return std::make_unique<SerialQueue>(); }

std::unique_ptr<HostQueue> make_arena_queue(int threads) {
  core::check(threads >= 1, "an arena has at least one thread");
  return std::make_unique<ArenaQueue>(threads);
}

}  // namespace gradtune::compress
