// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
#include "hooks/c10d/communicator.h"

#include <ATen/Parallel.h>
#include <gmock/gmock.h>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroupWrapper.hpp>

#include <algorithm>
#include <array>
#include <cmath>
#include <csignal>
#include <cstring>
#include <filesystem>
#include <iterator>
#include <memory>
#include <span>
#include <stdexcept>
#include <vector>

#include "engine/core/float16.h"
#include "hooks/c10d/eager_messages.h"
#include "hooks/c10d/link_probe.h"
#include "tests/hooks/jobs.h"
#include "tests/hooks/ranks.h"
#include "tests/suites/communicator_conformance.h"

namespace gradtune::test {
namespace {

using testing::HasSubstr;

void conform(int size) {
  run_ranks(size, [](const Rank& rank) {
    auto group = make_group();
    auto communicator =
        make_c10d_communicator(make_gloo_backend("conformance", group->getStore(), rank.rank, rank.size, 20'000, 2));
    suites::run_communicator_conformance(*communicator);
  });
}

TEST(C10dCommunicator, ConformsOnOneRank) { conform(1); }
TEST(C10dCommunicator, ConformsOnTwoRanks) { conform(2); }
TEST(C10dCommunicator, ConformsOnThreeRanks) { conform(3); }
TEST(C10dCommunicator, ConformsOnFourRanks) { conform(4); }

// Messages of up to some MiB arrive in chunks then.
TEST(C10dCommunicator, ConformsWhereTheDelayIsLong) {
  for (const int size : {2, 3}) {
    run_ranks(
        size, +[](const Rank& rank) {
          auto group = make_group();
          auto communicator =
              make_c10d_communicator(make_gloo_backend("far", group->getStore(), rank.rank, rank.size, 20'000, 2));
          communicator->expect_delay(1e6);
          suites::run_communicator_conformance(*communicator);
        });
  }
}

// A byte of the message that `from` sends to `to` in a given exchange.
std::byte byte_of(int from, int to, int exchange, int64_t at) {
  return static_cast<std::byte>(at * 7 + at / 251 + 31 * from + 57 * to + 101 * exchange);
}

// The payloads of the next test use what their first eight bytes say.
int64_t said_bytes(std::span<const std::byte> payload) {
  int64_t bytes = 0;
  std::memcpy(&bytes, payload.data(), sizeof(bytes));
  return std::min(bytes, static_cast<int64_t>(payload.size()));
}

// Exchanges of all sizes around those of chunks and of the longest eager message, four at a time, whole and with
// payloads that are shorter than their buffers. Every byte that has to arrive is compared.
TEST(C10dCommunicator, EagerMessagesBringEveryByte) {
  run_ranks(3, [](const Rank& rank) {
    auto group = make_group();
    auto communicator =
        make_c10d_communicator(make_gloo_backend("eager", group->getStore(), rank.rank, rank.size, 60'000, 4));
    constexpr int64_t kChunk = EagerMessages::kChunkBytes, kMost = EagerMessages::kMostBytes;
    struct Flight {
      std::vector<std::byte> in, out;
      comm::Waiter waiter;
      int64_t bytes = 0;
    };
    int exchange = 0;
    for (const double delay_us : {0.0, 1500.0, 1e6}) {
      communicator->expect_delay(delay_us);
      const std::vector<int64_t> sizes = {8,          kChunk / 4, kChunk / 4 + 1, kChunk - 1,   kChunk,   kChunk + 1,
                                          2 * kChunk, 100,        5 * kChunk + 3, kMost - 1000, kMost,    kMost + 1,
                                          1001,       9,          kChunk * 2 - 1, kChunk * 3,   64 << 10, 12};
      for (const bool is_short : {false, true}) {
        constexpr size_t kAtOnce = 4;
        std::vector<std::unique_ptr<Flight>> flying;
        const auto used_of = [&](int from, int64_t bytes) {
          return is_short ? 8 + (bytes - 8) * (from + 1) / 4 : bytes;
        };
        const auto land = [&](int number) {
          Flight& flight = *flying[static_cast<size_t>(number)];
          const core::Status status = flight.waiter.result().get();
          ASSERT_TRUE(status.ok()) << status.error().message;
          for (int from = 0; from < rank.size; ++from) {
            const std::byte* const part = flight.out.data() + from * flight.bytes;
            const int first = exchange - static_cast<int>(flying.size()) + number;
            for (int64_t at = is_short ? 8 : 0; at < used_of(from, flight.bytes); ++at) {
              ASSERT_EQ(part[at], byte_of(from, rank.rank, first, at))
                  << from << " at " << at << " of " << flight.bytes;
            }
          }
          flight.in.clear();
          flight.out.clear();
        };
        for (const int64_t bytes : sizes) {
          auto flight = std::make_unique<Flight>();
          flight->bytes = bytes;
          flight->in.resize(static_cast<size_t>(rank.size * bytes));
          flight->out.resize(static_cast<size_t>(rank.size * bytes));
          for (int to = 0; to < rank.size; ++to) {
            std::byte* const part = flight->in.data() + to * bytes;
            for (int64_t at = 0; at < bytes; ++at) part[at] = byte_of(rank.rank, to, exchange, at);
            const int64_t used = used_of(rank.rank, bytes);
            if (is_short) std::memcpy(part, &used, sizeof(used));
          }
          communicator->start({.kind = comm::Collective::Kind::all_to_all,
                               .in = flight->in.data(),
                               .out = flight->out.data(),
                               .count = bytes,
                               .payload_bytes = is_short ? bytes : 0,
                               .used_bytes = is_short ? said_bytes : nullptr,
                               .timeout_ms = 60'000},
                              flight->waiter, 0);
          flying.push_back(std::move(flight));
          ++exchange;
          if (flying.size() > kAtOnce) land(static_cast<int>(flying.size() - 1 - kAtOnce));
        }
        for (size_t number = sizes.size() - kAtOnce; number < sizes.size(); ++number) land(static_cast<int>(number));
      }
    }
  });
}

// More than eight ranks need two rounds of messages. Each call has other numbers, and other counts of them.
TEST(C10dCommunicator, MaximaOfAFewNumbersAreThoseOfAllOfManyRanks) {
  run_ranks(10, [](const Rank& rank) {
    auto group = make_group();
    auto communicator =
        make_c10d_communicator(make_gloo_backend("maxima", group->getStore(), rank.rank, rank.size, 20'000, 2));
    for (int call = 0; call < 30; ++call) {
      std::vector<double> numbers(static_cast<size_t>(1 + call % 29)), expected(numbers.size());
      const auto value = [&](int r, size_t i) { return std::sin(r * 1000.0 + call * 100.0 + static_cast<double>(i)); };
      for (size_t i = 0; i < numbers.size(); ++i) {
        numbers[i] = expected[i] = value(rank.rank, i);
        for (int r = 0; r < rank.size; ++r) expected[i] = std::max(expected[i], value(r, i));
      }
      comm::Waiter waiter;
      communicator->start({.kind = comm::Collective::Kind::all_reduce,
                           .reduction = comm::Collective::Reduction::max,
                           .type = comm::WireType::f64,
                           .out = reinterpret_cast<std::byte*>(numbers.data()),
                           .count = static_cast<int64_t>(numbers.size()),
                           .timeout_ms = 20'000},
                          waiter, 0);
      const core::Status status = waiter.result().get();
      ASSERT_TRUE(status.ok()) << status.error().message;
      ASSERT_EQ(numbers, expected) << "call " << call;
    }
  });
}

// Over a backend that is not of type Gloo, like a user's own: its collectives are c10d's.
TEST(C10dCommunicator, ConformsOverAnotherBackend) {
  for (const int size : {2, 4}) {
    run_ranks(
        size, +[](const Rank& rank) {
          const auto group = make_group();  // lives until the others are connected as well
          auto store = group->getStore();
          const auto gloo = [&](const char* prefix) {
            return make_gloo_backend(prefix, store, rank.rank, rank.size, 20'000, 2);
          };
          auto communicator =
              make_c10d_communicator(c10::make_intrusive<c10d::ProcessGroupWrapper>(gloo("wrapped"), gloo("checks")));
          suites::run_communicator_conformance(*communicator);
        });
  }
}

// The peer never comes. The collective's deadline is far beyond the test's.
void end_when_aborted(const comm::Collective& collective) {
  run_ranks(2, [&](const Rank& rank) {
    const auto group = make_group();  // lives until the others are connected as well
    auto store = group->getStore();
    auto communicator = make_c10d_communicator(make_gloo_backend("aborted", store, rank.rank, rank.size, 20'000, 2));
    std::byte small{};
    const comm::Collective little{.kind = comm::Collective::Kind::all_reduce, .out = &small, .count = 1};
    ASSERT_TRUE(comm::run(*communicator, little));  // both are connected
    if (rank.rank == 0) {
      comm::Waiter waiter;
      auto result = waiter.result();
      communicator->start(collective, waiter, 0);
      communicator->abort();
      EXPECT_FALSE(result.get());
      store->set("over", std::vector<uint8_t>{1});
    }
    store->wait({"over"});
  });
}

TEST(C10dCommunicator, AnExchangeUnderWayEndsWhenItIsAborted) {
  std::vector<std::byte> in(8), out(8);
  end_when_aborted({.kind = comm::Collective::Kind::all_to_all,
                    .in = in.data(),
                    .out = out.data(),
                    .count = 4,
                    .timeout_ms = 3'600'000});
}

TEST(C10dCommunicator, MaximaUnderWayEndWhenTheyAreAborted) {
  double number = 1;
  end_when_aborted({.kind = comm::Collective::Kind::all_reduce,
                    .reduction = comm::Collective::Reduction::max,
                    .type = comm::WireType::f64,
                    .out = reinterpret_cast<std::byte*>(&number),
                    .count = 1,
                    .timeout_ms = 3'600'000});
}

// Tests a collective that cannot begin. Others may have begun it, so the next one would be taken for it.
TEST(C10dCommunicator, WhatCanNotBeginIsAnErrorAndTheLastOne) {
  if (kSanitizing) GTEST_SKIP() << "a sanitizer's `new` ends the process where there is no memory";
  run_ranks(2, [](const Rank& rank) {
    const auto group = make_group();  // lives until the others are connected as well
    auto store = group->getStore();
    auto communicator = make_c10d_communicator(make_gloo_backend("huge", store, rank.rank, rank.size, 20'000, 2));
    std::byte small{};
    const comm::Collective little{.kind = comm::Collective::Kind::all_reduce, .out = &small, .count = 1};
    ASSERT_TRUE(comm::run(*communicator, little));  // both are connected
    const core::Status huge = comm::run(
        *communicator,
        {.kind = comm::Collective::Kind::reduce_scatter, .type = comm::WireType::f32, .count = int64_t{1} << 45});
    ASSERT_FALSE(huge);
    EXPECT_THAT(huge.error().message, testing::AllOf(HasSubstr("reduce_scatter"), HasSubstr("memory")));
    EXPECT_FALSE(comm::run(*communicator, little));
  });
}

// A backend on which everything fails.
class BrokenBackend final : public c10d::Backend {
 public:
  struct SilentWork final : c10d::Work {};  // without a future
  using c10d::Backend::Backend;
  c10::intrusive_ptr<c10d::Work> allreduce(std::vector<at::Tensor>&, const c10d::AllreduceOptions&) override {
    return c10::make_intrusive<SilentWork>();
  }
  c10::intrusive_ptr<c10d::Work> reduce(std::vector<at::Tensor>&, const c10d::ReduceOptions&) override {
    throw std::runtime_error("the first line\nand a stack");
  }
  c10::intrusive_ptr<c10d::Work> broadcast(std::vector<at::Tensor>&, const c10d::BroadcastOptions&) override {
    throw 7;
  }
};

TEST(C10dCommunicator, WhateverABackendThrowsIsAnErrorOfOneLine) {
  using Kind = comm::Collective::Kind;
  for (const Kind kind : {Kind::all_reduce, Kind::reduce, Kind::broadcast, Kind::gather, Kind::reduce_scatter}) {
    auto communicator = make_c10d_communicator(c10::make_intrusive<BrokenBackend>(0, 2));
    std::vector<std::byte> in(4), out(4);
    const core::Status status =
        comm::run(*communicator, {.kind = kind, .in = in.data(), .out = out.data(), .count = 4});
    ASSERT_FALSE(status);
    EXPECT_FALSE(status.error().message.empty());
    EXPECT_THAT(status.error().message, testing::Not(HasSubstr("\n")));
  }
}

// Bits must not depend on the order of arrival, nor 16-bit sums on the number of ranks.
TEST(C10dCommunicator, AddsUpInTheOrderOfRanks) {
  run_ranks(3, [](const Rank& rank) {
    const auto group = make_group();  // lives until the others are connected as well
    auto store = group->getStore();
    auto communicator = make_c10d_communicator(make_gloo_backend("order", store, rank.rank, rank.size, 20'000, 2));
    const auto reduce_scatter = [&](comm::WireType type, const auto& in, auto& out) {
      comm::run(*communicator, {.kind = comm::Collective::Kind::reduce_scatter,
                                .type = type,
                                .in = reinterpret_cast<const std::byte*>(in.data()),
                                .out = reinterpret_cast<std::byte*>(out.data()),
                                .count = static_cast<int64_t>(out.size())})
          .value();
    };
    const float addend = std::array{1e8F, 1.0F, -1e8F}[static_cast<size_t>(rank.rank)];  // another order gives 1
    std::vector<float> sums(1000);
    reduce_scatter(comm::WireType::f32, std::vector<float>(3000, addend), sums);
    EXPECT_EQ(sums, std::vector<float>(1000, 0));
    const uint16_t narrow = core::narrow_bf16(rank.rank == 0 ? 256 : 1);  // rounded twice gives 256
    std::vector<uint16_t> narrow_sums(1000);
    reduce_scatter(comm::WireType::bf16, std::vector<uint16_t>(3000, narrow), narrow_sums);
    EXPECT_EQ(narrow_sums, std::vector<uint16_t>(1000, core::narrow_bf16(258)));
  });
}

// ATen would start a team of threads on each of an exchange's threads.
TEST(C10dCommunicator, AddingUpStartsNoThreads) {
  run_ranks(2, [](const Rank& rank) {
    at::set_num_threads(4);
    const auto group = make_group();  // lives until the others are connected as well
    auto store = group->getStore();
    auto communicator = make_c10d_communicator(make_gloo_backend("threads", store, rank.rank, rank.size, 20'000, 2));
    constexpr int64_t kCount = 1 << 20;
    std::vector<float> in(2 * kCount, 1), out(kCount);
    const auto threads = [] {
      const std::filesystem::directory_iterator tasks("/proc/self/task");
      return std::distance(begin(tasks), end(tasks));
    };
    const auto before = threads();
    for (int i = 0; i < 4; ++i) {
      comm::run(*communicator, {.kind = comm::Collective::Kind::reduce_scatter,
                                .type = comm::WireType::f32,
                                .in = reinterpret_cast<const std::byte*>(in.data()),
                                .out = reinterpret_cast<std::byte*>(out.data()),
                                .count = kCount})
          .value();
    }
    EXPECT_EQ(threads(), before);
    EXPECT_EQ(out, std::vector<float>(kCount, 2));
  });
}

// The measured values differ between machines.
TEST(C10dCommunicator, TheProbeOfItsLinkIsSane) {
  run_ranks(3, [](const Rank& rank) {
    auto group = make_group();
    auto communicator =
        make_c10d_communicator(make_gloo_backend("probe", group->getStore(), rank.rank, rank.size, 20'000, 4));
    const policies::IdleLink messages =
        probe_link({*communicator, core::SteadyClock(), 20'000, {}}, /*most_bytes=*/0).link;
    EXPECT_GT(messages.message_us, 0);
    EXPECT_GE(messages.wait_us, 0);
    EXPECT_LE(messages.wait_us, messages.message_us);
    EXPECT_EQ(messages.byte_us, 0);
    const Probed bytes = probe_link({*communicator, core::SteadyClock(), 20'000, {}}, 8 << 20);
    EXPECT_GT(bytes.link.byte_us, 1e-6);  // 1 TB/s
    EXPECT_LT(bytes.link.byte_us, 1);     // 1 MB/s
    EXPECT_GT(bytes.cores, 0);
  });
}

// Collectives of ranks that continue differently would not match.
TEST(C10dCommunicator, RanksProbeAlikeHoweverDifferentlyTheyMeasure) {
  class FastClock final : public core::Clock {
   public:
    explicit FastClock(int64_t times) : times_(times) {}
    int64_t now_ns() const override { return times_ * steady_.now_ns(); }

   private:
    const int64_t times_;
    const core::SteadyClock steady_;
  };
  run_ranks(3, [](const Rank& rank) {
    auto group = make_group();
    auto communicator =
        make_c10d_communicator(make_gloo_backend("probe", group->getStore(), rank.rank, rank.size, 20'000, 4));
    for (const int slow : {0, 1, 2}) {
      const FastClock clock(rank.rank == slow ? 1 : 1000);
      EXPECT_GT(probe_link({*communicator, clock, 20'000, {}}, 4 << 20).link.byte_us, 0);
    }
  });
}

// A write to a killed rank sometimes ended the process by a signal.
TEST(C10dCommunicator, ABrokenPipeIsAnErrorAndHandlersStay) {
  run_ranks(1, [](const Rank&) {
    const auto group = make_group();  // lives until the others are connected as well
    auto store = group->getStore();
    const auto own = [](int) {};
    std::signal(SIGPIPE, own);
    make_gloo_backend("first", store, 0, 1, 20'000, 1);
    EXPECT_EQ(std::signal(SIGPIPE, SIG_DFL), +own);
    make_gloo_backend("second", store, 0, 1, 20'000, 1);
    EXPECT_EQ(std::signal(SIGPIPE, SIG_DFL), SIG_IGN);
  });
}

}  // namespace
}  // namespace gradtune::test
