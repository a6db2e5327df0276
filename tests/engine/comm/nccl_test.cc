// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// Tests the communicator over NCCL against a library of the tests (fake_nccl.cc), each rank in its own process.
// Every collective must ask NCCL for the right operation, no call may wait forever, and errors must explain that
// NCCL is not available.
#include "engine/comm/nccl.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

#include "tests/engine/comm/fake_nccl.h"
#include "tests/suites/communicator_conformance.h"

namespace gradtune::comm {
namespace {

using testing::HasSubstr;

// A stream that is a thread.
class ThreadStream final : public FakeNcclStream, public CollectiveStream, private core::Fence::Source {
 public:
  ThreadStream() : thread_([this] { work(); }) {}
  ~ThreadStream() override {
    ask({});
    thread_.join();
  }

  void ask(std::function<void()> work) override {
    const std::lock_guard lock(mutex_);
    ++asked_;
    tasks_.push_back(std::move(work));
    changed_.notify_all();
  }

  void* handle() override { return static_cast<FakeNcclStream*>(this); }
  core::Status after(const core::Fence& fence, int64_t timeout_ms) override {
    ask([fence, timeout_ms] { static_cast<void>(fence.wait(timeout_ms)); });
    return {};
  }
  core::Fence mark() override {
    const std::lock_guard lock(mutex_);
    return {*this, asked_};
  }

 private:
  bool passed(uint64_t point) const override {
    const std::lock_guard lock(mutex_);
    return done_ >= point;
  }
  core::Status wait(uint64_t point, int64_t timeout_ms) const override {
    std::unique_lock lock(mutex_);
    const bool has_passed =
        changed_.wait_for(lock, std::chrono::milliseconds(timeout_ms), [&] { return done_ >= point; });
    return has_passed ? core::Status() : core::Status(core::Error{core::Error::Code::timeout, "not done in time"});
  }
  std::optional<int64_t> time_ns(uint64_t) const override { return std::nullopt; }

  void work() {
    std::unique_lock lock(mutex_);
    for (;;) {
      changed_.wait(lock, [&] { return !tasks_.empty(); });
      const std::function<void()> task = std::move(tasks_.front());
      tasks_.pop_front();
      if (!task) return;
      lock.unlock();
      task();
      lock.lock();
      ++done_;
      changed_.notify_all();
    }
  }

  mutable std::mutex mutex_;
  mutable std::condition_variable changed_;
  std::deque<std::function<void()>> tasks_;
  uint64_t asked_ = 0, done_ = 0;
  std::thread thread_;
};

// Data that the processes of a test share: rank 0's id.
struct Shared {
  std::atomic<int> is_there;
  char id[128];
};

using Made = core::Result<std::unique_ptr<Communicator>>;

Made make(int rank, int size, Shared& shared, ThreadStream& stream, const std::string& library = FAKE_NCCL,
          int64_t connect_within_ms = 30'000) {
  const auto share = [&](const std::string& mine) -> core::Result<std::string> {
    if (rank == 0) {
      std::memcpy(shared.id, mine.data(), mine.size());
      shared.is_there = 1;
    }
    for (int tries = 0; shared.is_there == 0 && tries < 10'000; ++tries) usleep(1'000);
    return std::string(shared.id, sizeof shared.id);
  };
  return make_nccl_communicator(
      {.rank = rank, .size = size, .connect_within_ms = connect_within_ms, .share = share, .library = library}, stream);
}

// Runs each rank in a process; a failure there fails the test.
void on_processes(int size, const std::function<void(int rank, Shared& shared)>& body) {
  void* const memory = mmap(nullptr, sizeof(Shared), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  auto& shared = *new (memory) Shared{};
  std::vector<pid_t> children;
  for (int rank = 0; rank < size; ++rank) {
    children.push_back(fork());
    if (children.back() != 0) continue;
    alarm(100);
    body(rank, shared);
    std::fflush(nullptr);
    _exit(testing::Test::HasFailure() ? 1 : 0);
  }
  for (const pid_t child : children) {
    int status = 0;
    waitpid(child, &status, 0);
    EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << "a rank ended with status " << status;
  }
  munmap(memory, sizeof(Shared));
}

void on_ranks(int size, const std::function<void(Communicator& rank)>& body) {
  on_processes(size, [&](int rank, Shared& shared) {
    ThreadStream stream;
    Made made = make(rank, size, shared, stream);
    ASSERT_TRUE(made.ok()) << made.error().message;
    EXPECT_EQ(made.value()->space(), core::Space::cuda);
    body(*made.value());
  });
}

TEST(Nccl, Conforms) {
  for (const int size : {1, 2, 3, 4}) {
    on_ranks(size, [](Communicator& rank) { suites::run_communicator_conformance(rank); });
  }
}

TEST(Nccl, WhatARankNeverJoinsEndsByTheDeadline) {
  for (const int size : {2, 3}) {
    on_ranks(size, [](Communicator& rank) {
      suites::run_communicator_deadline({{&rank}});
      usleep(300'000);  // the others must not lose this rank before their deadline
    });
  }
}

TEST(Nccl, AbortEndsWhatIsUnderWay) {
  on_ranks(2, [](Communicator& rank) { suites::run_communicator_abort({{&rank}}); });
}

// Waits for a collective, as executors do.
core::Status sum(Communicator& rank, float& value, int64_t timeout_ms) {
  return run(rank, {.kind = Collective::Kind::all_reduce,
                    .type = WireType::f32,
                    .out = reinterpret_cast<std::byte*>(&value),
                    .count = 1,
                    .timeout_ms = timeout_ms});
}

TEST(Nccl, TheDeadlineNamesTheCollective) {
  on_ranks(2, [](Communicator& rank) {
    float value = 1;
    if (rank.rank() == 1) {
      usleep(600'000);
      return;
    }
    const core::Status late = sum(rank, value, 200);
    ASSERT_FALSE(late.ok());
    EXPECT_EQ(late.error().code, core::Error::Code::timeout);
    EXPECT_EQ(late.error().message, "all_reduce did not end within 200 ms");
    EXPECT_EQ(sum(rank, value, 200).error().message, late.error().message) << "and it is dead from then on";
  });
}

TEST(Nccl, ARankThatDiesIsAnErrorSoon) {
  on_ranks(2, [](Communicator& rank) {
    float value = 1;
    EXPECT_TRUE(sum(rank, value, 10'000).ok());
    if (rank.rank() == 1) syscall(SYS_exit_group, 0);  // as if killed: also without a sanitizer's check at the exit
    const core::Status lost = sum(rank, value, 30'000);
    ASSERT_FALSE(lost.ok());
    EXPECT_EQ(lost.error().code, core::Error::Code::lost);
    EXPECT_THAT(lost.error().message, HasSubstr("NCCL says remote process exited or there was a network error"));
  });
}

TEST(Nccl, CallsThatDifferAreAnError) {
  on_ranks(2, [](Communicator& rank) {
    std::vector<float> values(2);
    const core::Status differs = run(rank, {.kind = Collective::Kind::all_reduce,
                                            .type = WireType::f32,
                                            .out = reinterpret_cast<std::byte*>(values.data()),
                                            .count = 1 + rank.rank(),
                                            .timeout_ms = 10'000});
    ASSERT_FALSE(differs.ok());
    EXPECT_THAT(differs.error().message, testing::AnyOf(HasSubstr("invalid usage"), HasSubstr("network error")));
  });
}

TEST(Nccl, ARankThatDoesNotConnectIsAnErrorInTime) {
  on_processes(2, [](int rank, Shared& shared) {
    if (rank == 1) return;
    ThreadStream stream;
    const Made made = make(rank, 2, shared, stream, FAKE_NCCL, 200);
    ASSERT_FALSE(made.ok());
    EXPECT_EQ(made.error().code, core::Error::Code::timeout);
    EXPECT_EQ(made.error().message, "CommInitRankConfig did not begin on all ranks within 200 ms");
  });
}

// --- where there is none ---------------------------------------------------------------------------------------------

std::string refusal(const std::string& library) {
  Shared shared{};
  ThreadStream stream;
  const Made made = make(0, 1, shared, stream, library);
  return made.ok() ? "made" : made.error().message;
}

TEST(Nccl, WithoutTheLibraryItSaysSo) {
  EXPECT_THAT(
      refusal("libnccl_that_is_not_there.so.2"),
      HasSubstr("collectives of NCCL need the library libnccl_that_is_not_there.so.2, which can not be loaded"));
}

TEST(Nccl, ALibraryThatLacksFunctionsIsNamedWithThem) {
  EXPECT_THAT(refusal("libm.so.6"), HasSubstr("the library libm.so.6 has no ncclGetVersion, ncclGetUniqueId"));
}

TEST(Nccl, WithoutAGpuItSaysWhatNcclSays) {
  setenv("FAKE_NCCL_WITHOUT_GPU", "1", 1);
  EXPECT_EQ(refusal(FAKE_NCCL),
            "NCCL says unhandled cuda error (at CommInitRankConfig): no CUDA-capable device is detected");
  unsetenv("FAKE_NCCL_WITHOUT_GPU");
}

}  // namespace
}  // namespace gradtune::comm
