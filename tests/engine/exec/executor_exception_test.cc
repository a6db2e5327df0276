// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// Tests exceptions in a step, from any thread and from any call. The step ends in an error that says what was
// thrown, on this rank and soon on the others, and every later call returns it. The process continues.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <functional>
#include <new>
#include <stdexcept>
#include <thread>

#include "tests/engine/exec/fleet.h"
#include "tests/suites/communicator_ranks.h"

namespace gradtune::exec {
namespace {

using core::DType;
using testing::HasSubstr;

// The possible exceptions, and the text that the error must contain.
struct Thrown {
  const char* name;
  void (*what)();
  const char* said;
};
const Thrown kThrown[] = {
    {"memory", [] { throw std::bad_alloc(); }, "out of memory"},
    {"error", [] { throw std::runtime_error("the socket is made of cheese"); }, "the socket is made of cheese"},
    {"check", [] { core::check(false, "two is one"); }, "two is one"},
    {"other", [] { throw 7; }, "no exception"},  // NOLINT(hicpp-exception-baseclass)
};

class Exceptions : public testing::TestWithParam<Thrown> {
 protected:
  // Much longer than an error takes, so that a rank that is not told is noticed.
  static constexpr int64_t kTimeoutMs = 60'000;
  static constexpr int64_t kSoonMs = 20'000;

  const core::GradientTable table_ = make_table({{1000, DType::f32}, {50'001, DType::f32}});
  core::Rng rng_{5};

  // Runs steps until rank 0 fails. It must fail soon and for good, and say where and why.
  void expect_failure(Fleet& fleet, const std::string& where) {
    const auto begin = std::chrono::steady_clock::now();
    for (int i = 0; i < 5; ++i) {
      const std::vector<core::Status> statuses = fleet.step(random_gradients(table_, fleet.size(), rng_));
      if (statuses[0].ok()) continue;
      const std::string message = statuses[0].error().message;
      EXPECT_THAT(message, HasSubstr(where));
      EXPECT_THAT(message, HasSubstr(GetParam().said));
      // For the others this step may have been over already.
      for (int r = 1; r < fleet.size(); ++r) EXPECT_FALSE(fleet.rank(r).step(random_gradient(table_, rng_)).ok());
      EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::milliseconds(kSoonMs));
      Rank& rank = fleet.rank(0);
      const core::Status later[] = {rank.step(random_gradient(table_, rng_)), rank.settle(),
                                    rank.executor().prepare(9, rank.executor().strategy())};
      for (const core::Status& status : later) EXPECT_EQ(status.error().message, message);
      return;
    }
    ADD_FAILURE() << "no failure in 5 steps";
  }
};
INSTANTIATE_TEST_SUITE_P(Thrown, Exceptions, testing::ValuesIn(kThrown),
                         [](const auto& thrown) { return thrown.param.name; });

// Starts this many collectives.
class Throwing final : public comm::Communicator {
 public:
  Throwing(std::unique_ptr<comm::Communicator> inner, int calls, void (*what)())
      : inner_(std::move(inner)), left_(calls), what_(what) {}
  int rank() const override { return inner_->rank(); }
  int size() const override { return inner_->size(); }
  void abort() override {
    inner_->abort();
    what_();  // a broken transport
  }
  void start(const comm::Collective& collective, comm::CompletionSink& sink, uint64_t token) override {
    if (left_-- == 0) what_();
    inner_->start(collective, sink, token);
  }

 private:
  std::unique_ptr<comm::Communicator> inner_;
  int left_;
  void (*what_)();
};

TEST_P(Exceptions, OfACommunicator) {
  for (const bool is_control : {false, true}) {
    for (const int calls : {0, 1, 2}) {
      std::vector<RankGroups> groups = make_groups(2);
      auto& broken = is_control ? groups[0].control : groups[0].flat;
      broken = std::make_unique<Throwing>(std::move(broken), calls, GetParam().what);
      Fleet fleet(std::move(groups), table_, {.timeout_ms = kTimeoutMs});
      fleet.run(make_strategy(table_, "all_reduce", 5'000, 2));
      expect_failure(fleet, "on the communication thread");
    }
  }
}

// Behaves like the program's own codec, except in one call.
class ThrowingCodec final : public compress::Compressor {
 public:
  ThrowingCodec(const compress::Compressor& inner, bool decodes, void (*what)())
      : inner_(inner), decodes_(decodes), what_(what) {}
  const core::CompressorTraits& traits() const override { return inner_.traits(); }
  const core::CompressorSpec& spec() const override { return inner_.spec(); }
  Summing summing(int round) const override { return inner_.summing(round); }
  int64_t scratch_bytes(const core::Extent& extent) const override { return inner_.scratch_bytes(extent); }

  void encode(const compress::Encode& job, compress::Queue& queue) const override {
    if (!decodes_) fail(queue);
    return inner_.encode(job, queue);
  }
  void decode(const compress::Decode& job, compress::Queue& queue) const override {
    if (decodes_) fail(queue);
    return inner_.decode(job, queue);
  }
  core::Error defect(const compress::Decode& job, size_t position) const override {
    return inner_.defect(job, position);
  }

 private:
  // Throws in one of several tasks, which may run on workers of oneTBB.
  void fail(compress::Queue& queue) const {
    compress::for_blocks(compress::host(queue), 16, [&](int64_t block) {
      if (block == 11) what_();
    });
  }

  const compress::Compressor& inner_;
  bool decodes_;
  void (*what_)();
};

TEST_P(Exceptions, OfACompressor) {
  for (const std::string place : {"device", "host"}) {
    for (const bool decodes : {false, true}) {
      Fleet fleet(2, table_, {.host_threads = kHostThreads, .timeout_ms = kTimeoutMs});
      fleet.run(make_strategy(table_, "int8:256: encode@" + place + " all_gather decode@" + place, 1 << 20, 1));
      // Programs take their codecs from the table; this one gets another.
      auto& program = const_cast<Program&>(fleet.rank(0).executor().program());  // NOLINT
      const ThrowingCodec codec(*program.codecs[0], decodes, GetParam().what);
      for (Op& op : program.buckets[0].ops) {
        if (auto* const encode = op.as<Encode>()) encode->codec = &codec;
        if (auto* const decode = op.as<Decode>()) decode->codec = &codec;
      }
      expect_failure(fleet, place == "device" ? "on the thread that runs backward" : "on the host thread");
    }
  }
}

TEST_P(Exceptions, OfTheAlarm) {
  std::vector<RankGroups> groups = make_groups(2);
  std::vector<std::unique_ptr<Rank>> ranks;
  for (int r = 0; r < 2; ++r) {
    ExecutorOptions options{.timeout_ms = kTimeoutMs};
    if (r == 0) options.alarm = [what = GetParam().what]() -> core::Status { return what(), core::Status(); };
    ranks.push_back(std::make_unique<Rank>(table_, std::move(groups[static_cast<size_t>(r)]), options));
    ASSERT_TRUE(ranks.back()->executor().prepare(0, make_strategy(table_, "all_reduce", 1 << 20, 1)).ok());
    ranks.back()->executor().run(0);
  }
  // Rank 1 does not come until rank 0, which waits for it, has failed.
  const core::Status status = ranks[0]->step(random_gradient(table_, rng_));
  ASSERT_FALSE(status.ok());
  EXPECT_THAT(status.error().message, HasSubstr("the alarm"));
  EXPECT_THAT(status.error().message, HasSubstr(GetParam().said));
  EXPECT_FALSE(ranks[1]->step(random_gradient(table_, rng_)).ok());
}

TEST_P(Exceptions, OfTheControlWord) {
  GradientArenas gradients(table_);
  const core::SteadyClock clock;
  std::vector<RankGroups> groups = make_groups(1);
  Executor executor(groups[0].view(), clock, {.timeout_ms = kTimeoutMs},
                    [what = GetParam().what](bool) -> std::span<double> { return what(), std::span<double>(); });
  executor.set_gradients(table_, gradients.arenas());
  ASSERT_TRUE(executor.prepare(0, make_strategy(table_, "all_reduce", 1 << 20, 1)).ok());
  executor.run(0);
  EXPECT_TRUE(executor.begin_step().ok());
  for (int32_t tensor = 0; tensor < 2; ++tensor) executor.tensor_ready(tensor);
  const core::Status status = executor.finish_backward();
  ASSERT_FALSE(status.ok());
  EXPECT_THAT(status.error().message, HasSubstr("on the communication thread"));
  EXPECT_THAT(status.error().message, HasSubstr(GetParam().said));
  EXPECT_EQ(executor.conclude(true).error().message, status.error().message);
  executor.stop();
}

// --- Threads that do not end -----------------------------------------------------------------------------------------

TEST(ExecutorDeathTest, AThreadThatDoesNotEndEndsTheProcessWithALine) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  const core::GradientTable table = make_table({{100, DType::f32}});
  const auto stuck = [&] {
    GradientArenas gradients(table);
    const core::SteadyClock clock;
    std::vector<RankGroups> groups = make_groups(1);
    Executor executor(groups[0].view(), clock, {.timeout_ms = 100, .most_end_ms = 200}, [](bool) {
      std::this_thread::sleep_for(std::chrono::hours(1));
      return std::span<double>();
    });
    executor.set_gradients(table, gradients.arenas());
    executor.prepare(0, make_strategy(table, "all_reduce", 1 << 20, 1)).value();
    executor.run(0);
    EXPECT_TRUE(executor.begin_step().ok());
    executor.tensor_ready(0);
    if (executor.finish_backward().ok()) return;  // it has its own limit
    executor.stop();
  };
  EXPECT_EXIT(stuck(), testing::KilledBySignal(SIGABRT),
              "gradtune: the executor's communication thread did not end within 200 ms");
}

}  // namespace
}  // namespace gradtune::exec
