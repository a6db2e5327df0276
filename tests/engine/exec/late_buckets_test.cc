// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// Tests buckets that are due at the next forward pass: backward ends without them, a wait for one brings its
// averages, and the step is settled when all are done.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <cmath>
#include <thread>

#include "tests/engine/exec/fleet.h"
#include "tests/suites/communicator_ranks.h"

namespace gradtune::exec {
namespace {

using core::DType;
using testing::HasSubstr;

// Every second bucket is late, beginning with the first.
core::Strategy with_late_buckets(core::Strategy strategy) {
  for (size_t b = 0; b < strategy.buckets.size(); b += 2) strategy.buckets[b].due = core::Due::forward;
  return strategy;
}

bool can_be_late(const std::string& option) { return option.find("fp16") == std::string::npos; }

// A step that waits for every late bucket, the last first.
core::Status step_and_await(Rank& rank, const Values& gradient) {
  rank.load(gradient);
  if (core::Status done = rank.backward(); !done) return done;
  if (auto counts = rank.executor().conclude(rank.finite()); !counts) return counts.error();
  for (auto b = static_cast<int32_t>(rank.executor().program().buckets.size()); b-- > 0;) {
    for (int twice = 0; twice < 2; ++twice) {
      if (core::Status there = rank.executor().await(b); !there) return there;
    }
  }
  return {};
}

// Reports its second collective only when that is released.
class HoldsUpTheSecond final : public comm::Communicator, private comm::CompletionSink {
 public:
  HoldsUpTheSecond(std::unique_ptr<comm::Communicator> inner, const std::atomic<bool>& released)
      : released_(released), inner_(std::move(inner)) {}

  int rank() const override { return inner_->rank(); }
  int size() const override { return inner_->size(); }
  void start(const comm::Collective& collective, comm::CompletionSink& sink, uint64_t token) override {
    if (++calls_ != 2) return inner_->start(collective, sink, token);
    sink_ = &sink;
    inner_->start(collective, *this, token);
  }
  void abort() override { inner_->abort(); }

 private:
  void complete(uint64_t token, core::Status status, core::Fence done) override {
    while (!released_) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    sink_->complete(token, std::move(status), done);
  }

  const std::atomic<bool>& released_;
  comm::CompletionSink* sink_ = nullptr;
  int calls_ = 0;
  std::unique_ptr<comm::Communicator> inner_;  // destroyed first: its threads use the members above
};

// Averages and residuals have the bits of the same strategy with all buckets due at the end of backward. This holds
// with waits, and if the next step or a change of strategies waits for all.
TEST(LateBuckets, ChangeNothingOfWhatIsComputed) {
  const core::GradientTable table = mixed_table();
  for (const core::Place place : {core::Place::device, core::Place::host}) {
    for (const std::string& option : all_options(place)) {
      if (!can_be_late(option)) continue;
      const core::Strategy strategy = make_strategy(table, option, 3'000, 2);
      std::vector<std::vector<Values>> results;
      for (const bool late : {false, true}) {
        core::Rng rng(7);
        Fleet fleet(2, table, kWithHost);
        fleet.run(late ? with_late_buckets(strategy) : strategy);
        std::vector<Values>& seen = results.emplace_back();
        for (int step = 0; step < 4; ++step) {
          const std::vector<Values> gradients = random_gradients(table, 2, rng);
          suites::on_every_rank(
              2, [&](int r) { EXPECT_TRUE(step_and_await(fleet.rank(r), gradients[static_cast<size_t>(r)]).ok()); });
          for (int r = 0; r < 2; ++r) seen.push_back(fleet.rank(r).average());
        }
        suites::on_every_rank(2, [&](int r) { EXPECT_TRUE(fleet.rank(r).executor().drain().ok()); });
        for (const Values& residual : fleet.residuals()) seen.push_back(residual);
      }
      EXPECT_EQ(results[0], results[1]) << option;
    }
  }
}

// Backward ends while a late bucket's collective is held up; nothing waits for it before it is asked for.
TEST(LateBuckets, DoNotHoldUpTheEndOfBackward) {
  const core::GradientTable table = make_table({{1'000, DType::f32}, {1'000, DType::f32}});
  core::Strategy strategy = make_strategy(table, "all_reduce", 4'000, 2);
  strategy.buckets[1].due = core::Due::forward;
  std::atomic<bool> released = false;
  std::vector<RankGroups> groups = make_groups(2, 0, {.threads = 2});
  for (RankGroups& of_rank : groups)
    of_rank.flat = std::make_unique<HoldsUpTheSecond>(std::move(of_rank.flat), released);
  Fleet fleet(std::move(groups), table, {.timeout_ms = 30'000});
  fleet.run(strategy);
  std::atomic<int> ended = 0;
  suites::on_every_rank(2, [&](int r) {
    Rank& rank = fleet.rank(r);
    rank.load(Values(2'000, static_cast<float>(r)));
    EXPECT_TRUE(rank.backward().ok());
    EXPECT_TRUE(rank.executor().conclude(rank.finite()).value());
    // Checks the first bucket alone: the other one may be under way.
    EXPECT_EQ(*reinterpret_cast<const float*>(rank.arenas()[0].data), 0.5F);
    if (++ended == 2) released = true;
    EXPECT_TRUE(rank.executor().await(1).ok());
    EXPECT_EQ(rank.average()[1'999], 0.5F);
  });
}

// If a rank met a NaN, all know when backward ends, and late gradients get the same treatment as the others.
TEST(LateBuckets, OfAStepThatIsNotFiniteAreNotFiniteAndLeaveResidualsAlone) {
  const core::GradientTable table = make_table({{1'000, DType::f32}, {1'000, DType::f32}});
  for (const std::string option : {"all_reduce", "topk:0.1: encode@device all_gather decode@device"}) {
    Fleet fleet(2, table);
    fleet.run(with_late_buckets(make_strategy(table, option, 4'000, 2)));
    core::Rng rng(3);
    std::vector<Values> gradients = random_gradients(table, 2, rng);
    suites::on_every_rank(
        2, [&](int r) { EXPECT_TRUE(step_and_await(fleet.rank(r), gradients[static_cast<size_t>(r)]).ok()); });
    suites::on_every_rank(2, [&](int r) { EXPECT_TRUE(fleet.rank(r).executor().drain().ok()); });
    const std::vector<Values> before = fleet.residuals();
    gradients[1][5] = std::nanf("");  // of the late bucket
    suites::on_every_rank(2, [&](int r) {
      Rank& rank = fleet.rank(r);
      EXPECT_TRUE(step_and_await(rank, gradients[static_cast<size_t>(r)]).ok());
      EXPECT_FALSE(rank.finite());
      EXPECT_TRUE(std::isnan(rank.average()[5]));
      EXPECT_TRUE(rank.executor().drain().ok());
    });
    EXPECT_EQ(fleet.residuals(), before) << option;
  }
}

// The calling thread does its device work for late buckets while it waits.
TEST(LateBuckets, AreDrainedByTheNextStepAndByAChangeOfStrategies) {
  const core::GradientTable table = mixed_table();
  const std::string option = "topk:0.1: encode@device all_to_all decode@device encode@device all_gather decode@device";
  Fleet fleet(3, table);
  core::Rng rng(11);
  for (int change = 0; change < 4; ++change) {
    fleet.run(with_late_buckets(make_strategy(table, option, 2'000 + 1'000 * change, 1 + change % 3)));
    for (int step = 0; step < 3; ++step) {
      const std::vector<Values> gradients = random_gradients(table, 3, rng);
      suites::on_every_rank(3, [&](int r) {
        Rank& rank = fleet.rank(r);
        rank.load(gradients[static_cast<size_t>(r)]);
        EXPECT_TRUE(rank.backward().ok());
        EXPECT_TRUE(rank.executor().conclude(rank.finite()).ok());
      });
    }
    suites::on_every_rank(3, [&](int r) { EXPECT_TRUE(fleet.rank(r).executor().drain().ok()); });
    for (int r = 1; r < 3; ++r) EXPECT_EQ(fleet.rank(r).average(), fleet.rank(0).average());
  }
}

// One rank's thread leaves when its backward pass has ended, as into the user's code, where it may wait for the
// other rank. So the other rank must not need it.
TEST(LateBuckets, ThatMayBeLeftNeedNothingOfOtherRanksThreads) {
  const core::GradientTable table = mixed_table();
  for (const core::Place place : {core::Place::device, core::Place::host}) {
    for (const std::string& option : all_options(place)) {
      if (!can_be_late(option)) continue;
      core::Rng rng(7);
      Fleet fleet(2, table, {.host_threads = kHostThreads, .timeout_ms = 20'000});
      fleet.run(with_late_buckets(make_strategy(table, option, 2'000, 2)));
      const std::vector<Values> gradients = random_gradients(table, 2, rng);
      std::atomic<bool> is_there = false;
      suites::on_every_rank(2, [&](int r) {
        Rank& rank = fleet.rank(r);
        Executor& executor = rank.executor();
        const auto await_those = [&](bool that_may_be_left) {
          for (int32_t b = 0; b < static_cast<int32_t>(executor.program().buckets.size()); ++b) {
            if (executor.may_be_left(b) != that_may_be_left) continue;
            EXPECT_TRUE(executor.await(b).ok()) << option;
          }
        };
        rank.load(gradients[static_cast<size_t>(r)]);
        EXPECT_TRUE(rank.backward().ok());
        EXPECT_TRUE(executor.conclude(rank.finite()).ok());
        await_those(/*that_may_be_left=*/false);
        if (r == 1) {
          await_those(/*that_may_be_left=*/true);
          is_there = true;
          is_there.notify_one();
        }
        is_there.wait(false);
        EXPECT_TRUE(executor.drain().ok());
      });
    }
  }
}

// The buckets that may be left, of ten in a row.
TEST(LateBuckets, MayBeLeftWhereNothingWaitsForTheThread) {
  const core::GradientTable table = make_table({{10'000, DType::f32}});
  const auto left = [&](const std::string& option) {
    Fleet fleet(2, table, kWithHost);
    fleet.run(make_strategy(table, option, 4'000, 2));
    std::string which;
    for (int32_t b = 0; b < 10; ++b) which += fleet.rank(0).executor().may_be_left(b) ? 'y' : 'n';
    return which;
  };
  EXPECT_EQ(left("all_reduce"), "yyyyyyyyyy");
  EXPECT_EQ(left("bf16: encode@host all_reduce decode@host"), "yyyyyyyyyy");
  // Payloads of six collectives may have arrived and not be decoded yet.
  EXPECT_EQ(left("topk:0.1: encode@device all_gather decode@device"), "nnnnyyyyyy");
  EXPECT_EQ(left("int8: encode@device all_to_all decode@device encode@device all_gather decode@device"), "nnnnnnnnnn");
}

// Ranks agree after the first encode that all values are finite.
TEST(LateBuckets, AreRefusedWherePayloadsThatAreEncodedAgainMayOverflow) {
  const core::GradientTable table = make_table({{1'000, DType::f32}});
  const std::string twice = ": encode@device all_to_all decode@device encode@device all_gather decode@device";
  for (const auto& [option, admitted] : {std::pair<std::string, bool>{"fp16" + twice, false},
                                         {"bf16" + twice, true},
                                         {"fp16: encode@device all_reduce decode@device", true}}) {
    Fleet fleet(1, table);
    const core::Status status =
        fleet.rank(0).executor().prepare(0, with_late_buckets(make_strategy(table, option, 1 << 20, 1)));
    EXPECT_EQ(status.ok(), admitted) << option;
    EXPECT_THAT(admitted ? "fp16 encodes again" : status.error().message, HasSubstr("fp16 encodes again"));
  }
}

}  // namespace
}  // namespace gradtune::exec
