// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// Tests executors with gradients on a device and communicators of the host. Averages, residuals and losses have the
// same bits as with all memory on the host, for any order of work in the queues. Missing waits are found.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <cmath>
#include <limits>

#include "policies/space/decision_tree.h"
#include "tests/engine/exec/device_pair.h"
#include "tests/suites/communicator_ranks.h"

namespace gradtune::exec {
namespace {

using core::DType;
using core::Place;
using testing::HasSubstr;

const core::GradientTable kTable = make_table({{37, DType::f32}, {205, DType::f32}, {91, DType::f32}});

TEST(DeviceExecutor, ProgramsOfTheTreeHaveTheBitsOfTheHost) { conform(kTable, {"randk", 0.1}, 499); }

TEST(DeviceExecutor, ProgramsOfTheTreeHaveTheBitsOfTheHostWith16BitGradients) {
  conform(make_table({{130, DType::bf16}, {77, DType::f16}, {61, DType::bf16}}), {"topk", 0.1}, 499, 3);
}

TEST(DeviceExecutor, EveryCompressorHasTheBitsOfTheHost) {
  const core::GradientTable table = make_table({{700, DType::f32}, {133, DType::bf16}, {77, DType::f16}});
  Pair pair(2, 0, table);
  core::Rng rng(7);
  for (const std::string& option : all_options(Place::device)) {
    pair.run(make_strategy(table, option, 2'000, 2));
    for (int step = 0; step < 2; ++step) ASSERT_TRUE(pair.step(rng)) << option << ": " << pair.message;
  }
}

TEST(DeviceExecutor, DoublePrecisionHasTheBitsOfTheHostAmongOthersAndAlone) {
  for (const core::GradientTable& table :
       {make_table({{700, DType::f64}, {133, DType::f32}, {77, DType::f64}}), make_table({{900, DType::f64}})}) {
    Pair pair(3, 0, table);
    core::Rng rng(5);
    pair.run(make_strategy(table, "all_reduce", 2'000, 2));
    for (int step = 0; step < 4; ++step) {
      std::vector<Values> gradients = random_gradients(table, 3, rng);
      if (step == 2) gradients[1][600] = std::numeric_limits<float>::infinity();
      ASSERT_TRUE(pair.step(gradients)) << pair.message;
      for (int rank = 0; rank < 3; ++rank) EXPECT_EQ(pair.device().rank(rank).finite(), step != 2);
    }
  }
}

// --- switches, steps that do not count, late buckets -----------------------------------------------------------------

const char* const kTopk = "topk:0.1: encode@device all_to_all decode@device encode@device all_gather decode@device";
const char* const kMixed = "topk:0.1: encode@device all_to_all decode@device encode@host all_gather decode@host";
const char* const kOnHost = "topk:0.05: encode@host all_gather decode@host";
const char* const kPowerSgd =
    "powersgd:2: encode@device all_reduce decode@device encode@device.1 all_reduce decode@device.1";

TEST(DeviceExecutor, NothingIsLostAcrossSwitchesWhateverTheSpaceOfResiduals) {
  const core::GradientTable table = mixed_table();
  Pair pair(2, 0, table);
  core::Rng rng(11);
  const std::string options[] = {kTopk,
                                 kOnHost,
                                 kMixed,
                                 kPowerSgd,
                                 "all_reduce",
                                 "signef: encode@device all_gather "
                                 "decode@device",
                                 "threshk:0.1: encode@device all_gather decode@device"};
  for (int change = 0; change < 10; ++change) {
    const std::string& option = options[rng.below(std::size(options))];
    if (!core::parse_option(option, compress::known_traits())) continue;
    pair.run(make_strategy(table, option, 1'000 + static_cast<int64_t>(rng.below(20'000)), 2), rng.below(2) == 0);
    for (int step = 0; step < 3; ++step) ASSERT_TRUE(pair.step(rng)) << option << ": " << pair.message;
  }
}

TEST(DeviceExecutor, WhatIsCarriedIsReadAndGoesOnWhereItWas) {
  const core::GradientTable table = mixed_table();
  for (const char* option : {kTopk, kPowerSgd, kMixed}) {
    Pair looked(2, 0, table), calm(2, 0, table);
    core::Rng rng(3), same(3);
    for (Pair* pair : {&looked, &calm}) pair->run(make_strategy(table, option, 10'000, 2));
    for (int step = 0; step < 5; ++step) {
      ASSERT_TRUE(looked.step(rng, /*looks_at_residuals=*/true)) << looked.message;
      ASSERT_TRUE(calm.step(same, /*looks_at_residuals=*/false)) << calm.message;
      EXPECT_EQ(looked.device().rank(1).average(), calm.device().rank(1).average()) << option;
      const Carried here = looked.host().rank(0).executor().carried(),
                    there = looked.device().rank(0).executor().carried();
      ASSERT_EQ(here.state.size(), there.state.size());
      EXPECT_TRUE(std::equal(here.state.begin(), here.state.end(), there.state.begin())) << option;
    }
  }
}

TEST(DeviceExecutor, StepsThatAreNotFiniteLeaveAllAsItWas) {
  const core::GradientTable table = mixed_table();
  for (const char* option : {"all_reduce", kTopk, kMixed, kPowerSgd, "fp16: encode@device all_reduce decode@device"}) {
    Pair pair(2, 0, table);
    core::Rng rng(13);
    pair.run(make_strategy(table, option, 4'000, 2));
    for (int step = 0; step < 6; ++step) {
      std::vector<Values> gradients = random_gradients(table, 2, rng);
      if (step % 2 == 1) {
        gradients[static_cast<size_t>(step / 2 % 2)][static_cast<size_t>(step) * 1000] =
            step == 3 ? std::numeric_limits<float>::quiet_NaN() : std::numeric_limits<float>::infinity();
      }
      ASSERT_TRUE(pair.step(gradients)) << option << ", step " << step << ": " << pair.message;
    }
  }
}

TEST(DeviceExecutor, BucketsMayBeDueAtTheNextForwardPass) {
  const core::GradientTable table = mixed_table();
  for (const char* option : {"all_reduce", kTopk, kMixed}) {
    Pair pair(3, 0, table);
    core::Rng rng(17);
    core::Strategy strategy = make_strategy(table, option, 4'000, 2);
    for (size_t b = 0; b < strategy.buckets.size(); b += 2) strategy.buckets[b].due = core::Due::forward;
    pair.run(strategy);
    for (int step = 0; step < 5; ++step) ASSERT_TRUE(pair.step(rng)) << option << ": " << pair.message;
  }
}

// Gradients go to the host and back, and the host does what options place on the device.
TEST(DeviceExecutor, ADeviceWithoutKernelsHasTheBitsOfTheHost) {
  const core::GradientTable table = make_table({{700, DType::f32}, {133, DType::bf16}, {77, DType::f16}});
  Pair pair(2, 0, table, {.has_kernels = false});
  core::Rng rng(29);
  for (const std::string& option : all_options(Place::device)) {
    core::Strategy strategy = make_strategy(table, option, 2'000, 2);
    pair.run(strategy, /*for_good=*/rng.below(2) == 0);
    for (int step = 0; step < 3; ++step) {
      std::vector<Values> gradients = random_gradients(table, 2, rng);
      if (step == 1) gradients[0][static_cast<size_t>(rng.below(900))] = std::numeric_limits<float>::quiet_NaN();
      ASSERT_TRUE(pair.step(gradients)) << option << ", step " << step << ": " << pair.message;
    }
  }
}

TEST(DeviceExecutor, WhatADeviceHasNoKernelForTheHostDoes) {
  const core::GradientTable table = make_table({{700, DType::f32}, {133, DType::bf16}});
  Pair pair(2, 0, table, {.lacks = "topk"});
  core::Rng rng(31);
  for (const std::string& option : all_options(Place::device)) {
    if (!option.starts_with("topk")) continue;
    pair.run(make_strategy(table, option, 2'000, 2));
    for (int step = 0; step < 2; ++step) ASSERT_TRUE(pair.step(rng)) << option << ": " << pair.message;
  }
}

TEST(DeviceExecutor, ADeviceWithoutKernelsOnlyCopies) {
  HostDevice device({.has_kernels = false});
  const core::GradientTable table = on_device(make_table({{900, DType::f32}, {300, DType::bf16}}));
  for (const std::string& option : all_options(Place::device)) {
    const auto program = compile(make_strategy(table, option, 1 << 20, 1), table, {.size = 2}, {.device = &device});
    ASSERT_TRUE(program.ok()) << option;
    EXPECT_TRUE(program.value()->device_codecs.empty());
    for (const BucketProgram& bucket : program.value()->buckets) {
      for (const Op& op : bucket.ops) EXPECT_EQ(op.space == core::Space::cuda, op.is<Copy>()) << option;
    }
  }
}

// --- the order of work -----------------------------------------------------------------------------------------------

TEST(DeviceExecutor, DelaysInEveryQueueChangeNothing) {
  const core::GradientTable table = make_table({{900, DType::f32}, {31, DType::f32}, {400, DType::f32}});
  const HostDeviceOptions delayed{
      .delay_us = [](const std::string&,
                     core::Rng& rng) { return rng.below(4) == 0 ? static_cast<int64_t>(rng.below(200)) : 0; },
      .seed = 19};
  for (const char* option : {kTopk, "all_reduce"}) {
    Pair pair(2, 0, table, delayed);
    core::Rng rng(19);
    pair.run(make_strategy(table, option, 700, 3));
    for (int step = 0; step < 60; ++step) ASSERT_TRUE(pair.step(rng, step % 10 == 0)) << option << ": " << pair.message;
  }
}

struct Edge {
  const char *from, *to, *option;
};

// One case for each kind of edge between queues in programs with communicators of the host. (The host's work waits
// twice: the host is told, and its queues and communicators wait for the fence.)
const Edge kEdges[] = {{"current", "codec", kTopk},
                       {"current", "to_host", kOnHost},
                       {"codec", "to_host", kTopk},
                       {"to_device", "codec", kTopk}};

// Missing waits are data races, which ThreadSanitizer would report when they are planted in these tests. So only the
// correct code runs there.
#ifdef __SANITIZE_THREAD__
constexpr bool kPlanted[] = {false};
#else
constexpr bool kPlanted[] = {false, true};
#endif

// The queue in question is slow, so that work that starts too early sees old memory.
TEST(DeviceExecutor, AMissingWaitIsSeen) {
  const core::GradientTable table = make_table({{900, DType::f32}, {400, DType::f32}});
  for (const Edge& edge : kEdges) {
    HostDeviceOptions options{
        .delay_us = [&](const std::string& queue, core::Rng&) -> int64_t { return queue == edge.from ? 3'000 : 0; }};
    for (const bool is_planted : kPlanted) {
      if (is_planted) {
        options.skips_wait = [&](const std::string& from, const std::string& to) {
          return from == edge.from && to == edge.to;
        };
      }
      ExecutorOptions limits = kWithHost;
      limits.timeout_ms = 3'000;
      Pair pair(2, 0, table, options, limits);
      core::Rng rng(23);
      pair.run(make_strategy(table, edge.option, 1 << 20, 1));
      bool same = true;
      // Reading residuals waits for all, as the first step does.
      for (int step = 0; step < 3 && same; ++step) same = pair.step(rng, /*looks_at_residuals=*/false);
      EXPECT_EQ(same, !is_planted) << edge.from << " -> " << edge.to << ", " << edge.option << ": " << pair.message;
    }
  }
}

// With option `host`, one bucket is encoded, exchanged, decoded and copied back before another one has reached the
// host. So a large bucket that is cut into several overlaps its copies with its compression.
TEST(DeviceExecutor, CopiesOfABucketRunBesideTheWorkOnAnother) {
  const core::GradientTable table = make_table({{2'000, DType::f32}, {2'000, DType::f32}});
  std::atomic<int> to_host = 0, to_device = 0;  // pieces of work that began in this step
  std::atomic<int> most = 1'000;                // pieces sent to the host before one comes back
  const HostDeviceOptions device{
      .delay_us = [&](const std::string& queue, core::Rng&) -> int64_t {
        to_host += queue == "to_host" ? 1 : 0;
        to_device += queue == "to_device" ? 1 : 0;
        return 0;
      },
      .hangs = [&](const std::string& queue) { return queue == "to_host" && to_host >= most && to_device == 0; }};
  ExecutorOptions limits = kWithHost;
  limits.timeout_ms = 10'000;
  Fleet fleet(make_groups(1), table, limits, device);
  const core::Strategy strategy = make_strategy(table, kOnHost, 8'000, 2);
  ASSERT_EQ(strategy.buckets.size(), 2U);
  fleet.run(strategy);
  core::Rng rng(1);
  const auto step = [&] {
    to_host = to_device = 0;
    return fleet.step(random_gradients(table, 1, rng))[0];
  };
  ASSERT_TRUE(step().ok());
  ASSERT_TRUE(step().ok());
  ASSERT_EQ(to_host % 2, 0) << "both buckets ask for as much";
  most = to_host / 2;
  const core::Status held = step();
  EXPECT_TRUE(held.ok()) << held.error().message;
  EXPECT_EQ(to_host, 2 * most);
  fleet.rank(0).close();
}

// After the fence at the end of an operation has passed, its memory and its listener may go away.
TEST(DeviceExecutor, NobodyIsToldOfAStepThatIsOver) {
  const core::GradientTable table = make_table({{900, DType::f32}, {400, DType::f32}});
  Fleet fleet(make_groups(1), table, kWithHost, HostDeviceOptions{.tells_late_us = 20'000});
  fleet.run(make_strategy(table, "topk:0.1: encode@device all_gather decode@device", 2'000, 1));
  Rank& rank = fleet.rank(0);
  core::Rng rng(1);
  for (int step = 0; step < 3; ++step) {
    rank.load(random_gradient(table, rng));
    ASSERT_TRUE(rank.backward().ok());
    EXPECT_EQ(rank.device()->untold(), 0);
    ASSERT_TRUE(rank.settle().ok());
  }
}

TEST(DeviceExecutor, StoppingWithinAStepWaitsForTheDevice) {
  const core::GradientTable table = make_table({{900, DType::f32}, {400, DType::f32}});
  for (const std::string slow : {"codec", "to_host"}) {
    std::atomic<bool> is_slow = false;
    const HostDeviceOptions device{.delay_us = [&](const std::string& queue, core::Rng&) -> int64_t {
      return is_slow && queue == slow ? 10'000 : 0;
    }};
    Fleet fleet(make_groups(1), table, kWithHost, device);
    fleet.run(make_strategy(table, slow == "codec" ? kTopk : kOnHost, 2'000, 1));
    Rank& rank = fleet.rank(0);
    core::Rng rng(1);
    ASSERT_TRUE(fleet.step(random_gradients(table, 1, rng))[0].ok());
    rank.load(random_gradient(table, rng));
    is_slow = true;
    ASSERT_TRUE(rank.executor().begin_step().ok());
    for (const int32_t tensor : rank.ready_order) rank.executor().tensor_ready(tensor);
    rank.close();
    EXPECT_TRUE(rank.device()->is_idle()) << slow;
  }
}

// The calling thread belongs to the user, who chose its device.
TEST(DeviceExecutor, ItsThreadsHaveTheDeviceAsTheirCurrentOne) {
  const core::GradientTable table = make_table({{900, DType::f32}, {400, DType::f32}});
  for (const char* option : {kTopk, kMixed, kOnHost}) {
    Fleet fleet(make_groups(1), table, kWithHost, HostDeviceOptions());
    fleet.run(make_strategy(table, option, 2'000, 2));
    Rank& rank = fleet.rank(0);
    rank.device()->enter();
    const int64_t before = rank.device()->strangers();
    core::Rng rng(1);
    for (int step = 0; step < 3; ++step) ASSERT_TRUE(rank.step(random_gradient(table, rng)).ok());
    EXPECT_EQ(rank.device()->strangers(), before) << option;
  }
}

// --- failures --------------------------------------------------------------------------------------------------------

TEST(DeviceExecutor, WhatHangsIsNamed) {
  const core::GradientTable table = make_table({{900, DType::f32}, {400, DType::f32}});
  for (const std::string queue : {"codec", "to_host", "to_device"}) {
    std::atomic<bool> hangs = false;
    ExecutorOptions limits = kWithHost;
    limits.timeout_ms = 1'000;
    const HostDeviceOptions device{.hangs = [&](const std::string& name) { return hangs && name == queue; }};
    Fleet fleet(make_groups(1), table, limits, device);
    fleet.run(make_strategy(table, "topk:0.1: encode@device all_gather decode@device", 3'000, 1));
    core::Rng rng(1);
    ASSERT_TRUE(fleet.step(random_gradients(table, 1, rng))[0].ok());
    hangs = true;
    const core::Status status = fleet.step(random_gradients(table, 1, rng))[0];
    ASSERT_FALSE(status.ok());
    const std::string what = queue == "codec"     ? "operation 0 (encode)"
                             : queue == "to_host" ? "operation 1 (copy)"
                                                  : "operation 3 (copy)";
    EXPECT_EQ(status.error().message,
              "rank 0, step 2: " + what + " of bucket 0 has not ended on the device within 1000 ms");
    fleet.rank(0).close();
  }
}

TEST(DeviceExecutor, ARankThatFallsSilentIsAnError) {
  const core::GradientTable table = make_table({{900, DType::f32}, {400, DType::f32}});
  ExecutorOptions limits = kWithHost;
  limits.timeout_ms = 300;
  const comm::ThreadGroupOptions silent{.falls_silent = [](int rank, int64_t call) { return rank == 1 && call > 4; }};
  Fleet fleet(make_groups(2, 0, silent), table, limits, HostDeviceOptions());
  fleet.run(make_strategy(table, kTopk, 2'000, 1));
  core::Rng rng(1);
  bool failed = false;
  for (int step = 0; step < 5 && !failed; ++step) failed = !fleet.step(random_gradients(table, 2, rng))[0].ok();
  EXPECT_TRUE(failed);
}

// Changes the received data.
class Corrupts final : public comm::Communicator, private comm::CompletionSink {
 public:
  explicit Corrupts(std::unique_ptr<comm::Communicator> inner) : inner_(std::move(inner)) {}

  int rank() const override { return inner_->rank(); }
  int size() const override { return inner_->size(); }
  void start(const comm::Collective& collective, comm::CompletionSink& sink, uint64_t token) override {
    sink_ = &sink;
    out_ = collective.out;
    inner_->start(collective, *this, token);
  }
  void abort() override { inner_->abort(); }

 private:
  void complete(uint64_t token, core::Status status, core::Fence done) override {
    out_[0] ^= std::byte{0xff};
    sink_->complete(token, std::move(status), done);
  }

  comm::CompletionSink* sink_ = nullptr;
  std::byte* out_ = nullptr;
  std::unique_ptr<comm::Communicator> inner_;
};

TEST(DeviceExecutor, PayloadsThatCanNotBeDecodedAreNamed) {
  const core::GradientTable table = make_table({{900, DType::f32}});
  std::vector<RankGroups> groups = make_groups(1);
  groups[0].flat = std::make_unique<Corrupts>(std::move(groups[0].flat));
  Fleet fleet(std::move(groups), table, kWithHost, HostDeviceOptions());
  fleet.run(make_strategy(table, "topk:0.1: encode@device all_gather decode@device", 1 << 20, 1));
  core::Rng rng(1);
  const core::Status status = fleet.step(random_gradients(table, 1, rng))[0];
  ASSERT_FALSE(status.ok());
  EXPECT_EQ(status.error().code, core::Error::Code::corrupt);
  EXPECT_THAT(status.error().message, HasSubstr("bucket 0: payload 0 of topk:0.1 can not be decoded"));
}

// --- memory ----------------------------------------------------------------------------------------------------------

TEST(DeviceExecutor, EverySpaceHasItsBudget) {
  const core::GradientTable table = mixed_table();
  const core::Strategy strategy = make_strategy(table, kTopk, 10'000, 2);
  Fleet free(make_groups(1), table, kWithHost, HostDeviceOptions());
  free.run(strategy);
  Executor& executor = free.rank(0).executor();
  const int64_t on_device = executor.memory_bytes(core::Space::cuda), here = executor.memory_bytes();
  EXPECT_GE(on_device, table.numel() * 8);
  EXPECT_EQ(free.rank(0).device()->live_bytes(), on_device + table.bytes());
  ExecutorOptions limited = kWithHost;
  limited.memory_budget_bytes = std::max(on_device, here);
  EXPECT_TRUE(Fleet(make_groups(1), table, limited, HostDeviceOptions()).rank(0).executor().prepare(0, strategy).ok());
  limited.memory_budget_bytes = std::min(on_device, here) - 1;
  Fleet refused(make_groups(1), table, limited, HostDeviceOptions());
  const core::Status status = refused.rank(0).executor().prepare(0, strategy);
  ASSERT_FALSE(status.ok());
  EXPECT_THAT(status.error().message, HasSubstr("memory_budget allows"));
  EXPECT_EQ(refused.rank(0).executor().memory_bytes(core::Space::cuda), 0);
}

TEST(DeviceExecutor, GradientsOnADeviceNeedOne) {
  const core::GradientTable table = on_device(make_table({{900, DType::f32}}));
  const auto program = compile(make_strategy(table, "all_reduce", 1 << 20, 1), table, {.size = 2});
  ASSERT_FALSE(program.ok());
  EXPECT_THAT(program.error().message, HasSubstr("in memory of cuda, and there is no such device here"));
}

// Plain data, so that the copies can be counted: only the necessary ones.
TEST(DeviceExecutor, CopiesAreOperations) {
  HostDevice device;
  const auto printed = [&](const std::string& option) {
    const core::GradientTable table = on_device(make_table({{96, DType::f32}}));
    const auto program = compile(make_strategy(table, option, 1 << 20, 1), table, {.size = 2}, {.device = &device});
    std::string text;
    for (const Op& op : program.value()->buckets[0].ops) {
      text += std::string(name_of(op)) + (op.is_told ? "!" : "") + (op.frees ? "~" : "") + " ";
    }
    return text;
  };
  EXPECT_EQ(printed("all_reduce"), "scale copy! collective copy ");
  EXPECT_EQ(printed("topk:0.1: encode@device all_gather decode@device"), "encode copy! collective copy decode~ ");
  EXPECT_EQ(printed("topk:0.1: encode@host all_gather decode@host"), "copy! encode collective decode copy ");
  EXPECT_EQ(printed("bf16: encode@device all_reduce decode@device"), "encode copy! collective copy decode ");
  EXPECT_EQ(printed("topk:0.1: encode@device all_gather decode@host"), "encode copy! collective decode copy ");
  EXPECT_EQ(printed("reduce_scatter all_gather"), "scale copy! collective collective copy ");
}

}  // namespace
}  // namespace gradtune::exec
