// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// ThreadSanitizer never instruments this file, as it must see what kernels do and not how they are run. It sees a
// CUDA thread as a fiber of its own. Only meetings, and the beginning and the end of a launch, order threads.
#include "tests/emulator/emulator.h"

#include <sys/mman.h>
#include <ucontext.h>

#include <algorithm>
#include <random>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#ifdef __SANITIZE_ADDRESS__
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#endif
#ifdef GRADTUNE_EMULATOR_TSAN
#include <sanitizer/tsan_interface.h>
#endif

namespace gradtune::emulator {
namespace {

constexpr size_t kStackBytes = 64 << 10, kSharedBytes = 48 << 10, kMostThreads = 1024;
constexpr std::byte kUnset{0xa5};

// The point at which a fiber continues.
struct Context {
#ifdef __x86_64__
  void* stack_pointer = nullptr;
#else
  ucontext_t context;
#endif
  void* stack = nullptr;
  size_t stack_bytes = 0;
  void* tsan_fiber = nullptr;
};

enum class State : uint8_t { ready, in_warp, at_barrier, done };

// Addresses that stand for a point in time, for ThreadSanitizer. Two are used in turn, so that a thread that wakes
// late is not ordered behind the next meeting as well.
struct Moments {
  char at[2];
  bool turn = false;

  const void* next() {
    turn = !turn;
    return &at[turn];
  }
};

struct Thread : Context {
  Index index;
  unsigned lane = 0, warp = 0;
  State state = State::ready;
  uint32_t mask = 0;  // of the meeting that it waits in
  Where where;
  const void* woken_by = nullptr;
  Moments passed_on;
  char came = 0;
};

// Blocks run in slots, one after the other: a slot has stacks, and behind them the memory that a block shares.
struct Slot {
  std::byte* memory = nullptr;
  size_t threads = 0;
  std::vector<void*> tsan_fibers;
  Moments ended;
};

// Blocks of different slots are not ordered, so that ThreadSanitizer sees their effects on each other.
#ifdef GRADTUNE_EMULATOR_TSAN
constexpr unsigned kSlots = 2;
#else
constexpr unsigned kSlots = 1;
#endif

struct Machine {
  Schedule schedule = Schedule::forward;
  std::mt19937_64 random;
  Context host;
  std::vector<Thread> threads;
  Thread* current = nullptr;
  std::vector<Lane> lanes;
  std::vector<uint32_t> waiting;  // lanes, of each warp
  Thread* ready[kMostThreads];    // a ring buffer
  size_t first_ready = 0, ready_count = 0;
  unsigned arrived = 0, votes = 0, outcome = 0;  // of the barrier
  Position position;
  Slot slots[kSlots];
  Slot* slot = nullptr;
  char begun = 0, ended = 0;
  size_t shared_bytes = kSharedBytes;
  std::vector<std::pair<const void*, std::byte*>> shared;
  const std::function<void()>* body = nullptr;
  std::string failure;

  Thread*& ready_at(size_t i) { return ready[(first_ready + i) % kMostThreads]; }
};
thread_local Machine machine;

#ifdef GRADTUNE_EMULATOR_TSAN
void release(const void* moment) { __tsan_release(const_cast<void*>(moment)); }
void acquire(const void* moment) { __tsan_acquire(const_cast<void*>(moment)); }
#else
void release(const void* /*moment*/) {}
void acquire(const void* /*moment*/) {}
#endif

#ifdef __x86_64__
// A system call for each switch, as in swapcontext, would make it six times as slow.
extern "C" void gradtune_emulator_switch(void** from, void* to);
asm(R"(
.text
.type gradtune_emulator_switch, @function
gradtune_emulator_switch:
  pushq %rbp; pushq %rbx; pushq %r12; pushq %r13; pushq %r14; pushq %r15
  movq %rsp, (%rdi)
  movq %rsi, %rsp
  popq %r15; popq %r14; popq %r13; popq %r12; popq %rbx; popq %rbp
  ret
.size gradtune_emulator_switch, .-gradtune_emulator_switch
)");
#endif

void change(Context& from, Context& to, [[maybe_unused]] bool for_ever = false) {
#ifdef __SANITIZE_ADDRESS__
  void* fake_stack = nullptr;
  __sanitizer_start_switch_fiber(for_ever ? nullptr : &fake_stack, to.stack, to.stack_bytes);
#endif
#ifdef GRADTUNE_EMULATOR_TSAN
  __tsan_switch_to_fiber(to.tsan_fiber, __tsan_switch_to_fiber_no_sync);
#endif
#ifdef __x86_64__
  gradtune_emulator_switch(&from.stack_pointer, to.stack_pointer);
#else
  swapcontext(&from.context, &to.context);
#endif
#ifdef __SANITIZE_ADDRESS__
  __sanitizer_finish_switch_fiber(fake_stack, nullptr, nullptr);
#endif
}

void wait() { change(*machine.current, machine.host); }

// Thrown by a thread of the device. It ends the fiber, and the launch with it.
struct Failure {
  std::string what;
};
[[noreturn]] void fail(std::string what) { throw Failure{std::move(what)}; }

std::string name_of(const Index& index) {
  return "(" + std::to_string(index.x) + "," + std::to_string(index.y) + "," + std::to_string(index.z) + ")";
}
std::string name_of(const Thread& thread) {
  return "thread " + name_of(thread.index) + " of block " + name_of(machine.position.block);
}
std::string name_of(const Where& where) { return std::string(where.file_name()) + ":" + std::to_string(where.line()); }

bool same(const Where& a, const Where& b) {
  return a.line() == b.line() && a.column() == b.column() && a.file_name() == b.file_name();
}

[[noreturn]] void fail_apart(const char* who, const Thread& self, const Thread& other) {
  fail(std::string(who) + " meet in different places: " + name_of(self) + " at " + name_of(self.where) + ", " +
       name_of(other) + " at " + name_of(other.where));
}

void enter_fiber() {
#ifdef __SANITIZE_ADDRESS__
  __sanitizer_finish_switch_fiber(nullptr, const_cast<const void**>(&machine.host.stack), &machine.host.stack_bytes);
#endif
  Moments& ended = machine.slot->ended;
  acquire(&machine.begun);
  acquire(&ended.at[!ended.turn]);  // the end of the slot's block before
  try {
    (*machine.body)();
    machine.current->state = State::done;
  } catch (const Failure& failure) {
    machine.failure = failure.what;
  }
  release(&ended.at[ended.turn]);
  release(&machine.ended);
  change(*machine.current, machine.host, /*for_ever=*/true);
}

void make_fiber(Thread& thread, std::byte* stack) {
  thread.stack = stack;
  thread.stack_bytes = kStackBytes;
#ifdef __x86_64__
  void** top = reinterpret_cast<void**>(stack + kStackBytes) - 3;  // functions begin 8 bytes off a multiple of 16
  *--top = reinterpret_cast<void*>(enter_fiber);
  thread.stack_pointer = top - 6;  // the switch takes six registers of it
#else
  getcontext(&thread.context);
  thread.context.uc_stack = {.ss_sp = stack, .ss_flags = 0, .ss_size = kStackBytes};
  makecontext(&thread.context, enter_fiber, 0);
#endif
}

// Lets threads of [begin, end) continue whose lanes are in the mask.
void wake(size_t begin, size_t end, uint32_t mask, const void* moment) {
  const size_t before = machine.ready_count;
  for (size_t i = begin; i < end; ++i) {
    Thread& thread = machine.threads[i];
    if ((mask >> thread.lane & 1) == 0) continue;
    thread.state = State::ready;
    thread.woken_by = moment;
    machine.ready_at(machine.ready_count++) = &thread;
  }
  if (machine.schedule != Schedule::shuffled) return;
  for (size_t i = machine.ready_count; i > before + 1; --i) {
    std::swap(machine.ready_at(i - 1), machine.ready_at(before + machine.random() % (i - before)));
  }
}

const void* pass_on(Thread& thread) {
  const void* const moment = thread.passed_on.next();
  release(moment);
  return moment;
}

Thread* take_ready() {
  --machine.ready_count;
  if (machine.schedule == Schedule::reverse) return machine.ready_at(machine.ready_count);
  Thread* const thread = machine.ready_at(0);
  machine.first_ready = (machine.first_ready + 1) % kMostThreads;
  return thread;
}

std::byte* shared_begin() { return machine.slot->memory + machine.slot->threads * kStackBytes; }

void prepare(Slot& slot, size_t threads) {
  if (slot.threads < threads) {
    if (slot.memory != nullptr) munmap(slot.memory, slot.threads * kStackBytes + kSharedBytes);
    void* const memory = mmap(nullptr, threads * kStackBytes + kSharedBytes, PROT_READ | PROT_WRITE,
                              MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (memory == MAP_FAILED) throw std::runtime_error("no memory for the stacks of a block");
    slot.memory = static_cast<std::byte*>(memory);
    slot.threads = threads;
    machine.shared_bytes = kSharedBytes;
  }
#ifdef GRADTUNE_EMULATOR_TSAN
  while (slot.tsan_fibers.size() < threads) slot.tsan_fibers.push_back(__tsan_create_fiber(0));
#endif
  slot.ended.next();
  machine.slot = &slot;
  // Written by hand: ThreadSanitizer sees a memset wherever it is called.
  for (size_t i = 0; i < machine.shared_bytes; ++i) const_cast<volatile std::byte&>(shared_begin()[i]) = kUnset;
  machine.shared_bytes = 0;
  machine.shared.clear();
}

// Ends a launch before all of its threads have ended. AddressSanitizer would find their frames in the stacks of later
// threads.
[[noreturn]] void cut_off(const std::string& why) {
#ifdef __SANITIZE_ADDRESS__
  ASAN_UNPOISON_MEMORY_REGION(machine.slot->memory, machine.slot->threads * kStackBytes);
#endif
  throw std::runtime_error(why);
}

void run_block(unsigned block, Size size) {
  Machine& m = machine;
  const size_t n = size_t{size.x} * size.y * size.z;
  if (n == 0 || n > kMostThreads) throw std::runtime_error("a block has 1 to 1024 threads, not " + std::to_string(n));
  prepare(m.slots[block % kSlots], n);
  m.threads.resize(n);
  m.lanes.resize((n + 31) / 32 * 32);
  m.waiting.assign((n + 31) / 32, 0);
  m.first_ready = m.ready_count = 0;
  m.arrived = m.votes = 0;
  for (unsigned i = 0; i < n; ++i) {
    Thread& thread = m.threads[i];
    thread.index = {i % size.x, i / size.x % size.y, i / size.x / size.y};
    thread.lane = i % 32;
    thread.warp = i / 32;
    make_fiber(thread, m.slot->memory + i * kStackBytes);
#ifdef GRADTUNE_EMULATOR_TSAN
    thread.tsan_fiber = m.slot->tsan_fibers[i];
#endif
  }
  wake(0, n, ~0U, nullptr);
  size_t left = 0;
  while (m.ready_count > 0) {
    m.current = take_ready();
    m.position.thread = m.current->index;
    change(m.host, *m.current);
    if (!m.failure.empty()) {
      acquire(&m.ended);
      cut_off(std::exchange(m.failure, {}));
    }
    left += m.current->state == State::done ? 1 : 0;
  }
  for (const Thread& thread : m.threads) {
    if (thread.state == State::done) continue;
    cut_off(name_of(thread) + " waits for ever at " + name_of(thread.where) + ": " + std::to_string(left) + " of " +
            std::to_string(n) + " threads have ended, others wait elsewhere");
  }
}

}  // namespace

void set_schedule(Schedule schedule, uint64_t seed) {
  machine.schedule = schedule;
  machine.random.seed(seed);
}

const Position& position() { return machine.position; }
unsigned lane() { return machine.current->lane; }

void launch(Size grid, Size block, const std::function<void()>& body) {
  Machine& m = machine;
  m.body = &body;
  m.position.block_size = block;
  m.position.grid_size = grid;
#ifdef GRADTUNE_EMULATOR_TSAN
  m.host.tsan_fiber = __tsan_get_current_fiber();
#endif
  release(&m.begun);
  const unsigned n = grid.x * grid.y * grid.z;
  std::vector<unsigned> order(n);
  for (unsigned i = 0; i < n; ++i) order[i] = m.schedule == Schedule::reverse ? n - 1 - i : i;
  if (m.schedule == Schedule::shuffled) std::shuffle(order.begin(), order.end(), m.random);
  for (const unsigned i : order) {
    m.position.block = {i % grid.x, i / grid.x % grid.y, i / grid.x / grid.y};
    run_block(i, block);
  }
  acquire(&m.ended);
}

uint64_t meet(uint32_t mask, uint64_t value, uint64_t parameter, Combine combine, const Where& where) {
  Thread& self = *machine.current;
  const size_t first = size_t{self.warp} * 32, end = std::min(first + 32, machine.threads.size());
  Lane* const lanes = &machine.lanes[first];
  if ((mask >> self.lane & 1) == 0) fail(name_of(self) + " is not in its own mask at " + name_of(where));
  lanes[self.lane] = {value, parameter, 0};
  self.mask = mask;
  self.where = where;
  self.state = State::in_warp;
  release(&self.came);
  uint32_t& waiting = machine.waiting[self.warp];
  waiting |= 1U << self.lane;
  bool all = (waiting & mask) == mask;
  for (size_t i = first; all && i < end; ++i) {
    all = (mask >> (i - first) & 1) == 0 || machine.threads[i].mask == mask;
  }
  if (all) {
    for (size_t i = first; i < end; ++i) {
      const Thread& other = machine.threads[i];
      if ((mask >> other.lane & 1) == 0) continue;
      if (!same(other.where, where)) fail_apart("lanes of a warp", self, other);
      if (combine == exchange && (mask >> lanes[other.lane].parameter & 1) == 0) {
        fail(name_of(other) + " takes from a lane that is not in the mask at " + name_of(where));
      }
      acquire(&other.came);
    }
    combine(lanes, mask);
    waiting &= ~mask;
    wake(first, end, mask, pass_on(self));
  }
  wait();
  acquire(self.woken_by);
  return lanes[self.lane].result;
}

void must_be_aligned(const void* address, size_t bytes, const Where& where) {
  if (reinterpret_cast<uintptr_t>(address) % bytes == 0) return;
  fail(name_of(*machine.current) + " takes " + std::to_string(bytes) + " bytes at once that are not aligned at " +
       name_of(where));
}

int barrier(bool predicate, const Where& where) {
  Thread& self = *machine.current;
  self.where = where;
  self.state = State::at_barrier;
  machine.votes += predicate ? 1 : 0;
  release(&machine.arrived);
  if (++machine.arrived == machine.threads.size()) {
    for (const Thread& other : machine.threads) {
      if (!same(other.where, where)) fail_apart("threads of a block", self, other);
    }
    acquire(&machine.arrived);
    machine.outcome = std::exchange(machine.votes, 0);
    machine.arrived = 0;
    wake(0, machine.threads.size(), ~0U, pass_on(self));
  }
  wait();
  acquire(self.woken_by);
  return static_cast<int>(machine.outcome);
}

void exchange(Lane* lanes, uint32_t mask) {
  for (unsigned i = 0; i < 32; ++i) {
    if ((mask >> i & 1) != 0) lanes[i].result = lanes[lanes[i].parameter].value;
  }
}

void* shared_memory(const void* place, size_t bytes, size_t alignment) {
  for (const auto& [known, memory] : machine.shared) {
    if (known == place) return memory;
  }
  const size_t at = (machine.shared_bytes + alignment - 1) / alignment * alignment;
  if (at + bytes > kSharedBytes) fail("a block shares more than 48 KiB");
  machine.shared_bytes = at + bytes;
  machine.shared.emplace_back(place, shared_begin() + at);
  return shared_begin() + at;
}

}  // namespace gradtune::emulator
