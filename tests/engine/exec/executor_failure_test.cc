// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// Tests steps in which ranks fall silent, end, or send data that cannot be decoded. Every rank gets an error that
// names the cause, and the same error ever after.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "tests/engine/exec/fleet.h"
#include "tests/suites/communicator_ranks.h"

namespace gradtune::exec {
namespace {

using core::DType;
using core::Error;
using testing::HasSubstr;

const ExecutorOptions kImpatient{.host_threads = 1, .timeout_ms = 1000};

// Runs steps until a rank fails, which must be final; returns the errors of all.
std::vector<Error> step_until_failure(Fleet& fleet, const core::GradientTable& table) {
  core::Rng rng(7);
  for (int i = 0; i < 100; ++i) {
    const std::vector<core::Status> statuses = fleet.step(random_gradients(table, fleet.size(), rng));
    if (statuses[0].ok()) continue;
    std::vector<Error> errors;
    for (int r = 0; r < fleet.size(); ++r) {
      EXPECT_FALSE(statuses[static_cast<size_t>(r)].ok());
      errors.push_back(statuses[static_cast<size_t>(r)].error());
      const core::Status later[] = {fleet.rank(r).step(random_gradient(table, rng)), fleet.rank(r).settle(),
                                    fleet.rank(r).executor().prepare(9, fleet.rank(r).executor().strategy())};
      for (const core::Status& status : later) EXPECT_EQ(status.error().message, errors.back().message);
    }
    return errors;
  }
  ADD_FAILURE() << "no failure in 100 steps";
  return std::vector<Error>(static_cast<size_t>(fleet.size()));
}

core::Strategy two_step_strategy(const core::GradientTable& table, const std::string& place) {
  const std::string coding = "@" + place + " ";
  return make_strategy(
      table,
      "efsignsgd:64: encode" + coding + "all_to_all decode" + coding + "encode" + coding + "all_gather decode@" + place,
      10'000, 2);
}

TEST(ExecutorFailure, ASilentRankEndsAllOthersByTheDeadlineWithANamedError) {
  const core::GradientTable table = mixed_table();
  for (const auto& [place, call] :
       std::vector<std::pair<std::string, int64_t>>{{"device", 0}, {"device", 37}, {"host", 6}}) {
    Fleet fleet(3, table, kImpatient,
                {.falls_silent = [call = call](int rank, int64_t c) { return rank == 1 && c >= call; }});
    fleet.run(two_step_strategy(table, place));
    for (const Error& error : step_until_failure(fleet, table)) {
      EXPECT_THAT(error.message, HasSubstr("a collective of bucket"));
      EXPECT_THAT(error.message, HasSubstr("waiting for rank 1"));
    }
  }
  Fleet fleet(3, table, kImpatient, {}, {.falls_silent = [](int rank, int64_t c) { return rank == 2 && c >= 1; }});
  fleet.run(two_step_strategy(table, "device"));
  for (const Error& error : step_until_failure(fleet, table)) {
    EXPECT_THAT(error.message, HasSubstr("the control collective"));
    EXPECT_THAT(error.message, HasSubstr("waiting for rank 2"));
  }
}

const char* const kTwoStep = "topk:0.1: encode@device all_to_all decode@device encode@device all_gather decode@device";

TEST(ExecutorFailure, ARankThatEndsIsLostForTheOthers) {
  const core::GradientTable table = mixed_table();
  Fleet fleet(3, table, kWithHost);
  fleet.run(make_strategy(table, kTwoStep, 10'000, 2));
  core::Rng rng(9);
  const std::vector<Values> gradients = random_gradients(table, 3, rng);
  for (const core::Status& status : fleet.step(gradients)) ASSERT_TRUE(status.ok());
  suites::on_every_rank(3, [&](int r) {
    if (r == 1) return fleet.rank(r).close();
    const core::Status status = fleet.rank(r).step(gradients[static_cast<size_t>(r)]);
    ASSERT_FALSE(status.ok());
    EXPECT_EQ(status.error().code, Error::Code::lost);
    EXPECT_THAT(status.error().message, HasSubstr("rank 1 is lost"));
  });
  EXPECT_THAT(fleet.rank(1).step(gradients[1]).error().message, HasSubstr("stopped"));
}

// Threads that have not heard of the failure yet may still write the times of operations, and an operation that
// never ended took no time. So such a step has no times.
TEST(ExecutorFailure, AStepThatFailedHasNoTimeOfCollectives) {
  const core::GradientTable table = mixed_table();
  Fleet fleet(2, table, kImpatient, {.falls_silent = [](int rank, int64_t c) { return rank == 1 && c >= 3; }});
  fleet.run(make_strategy(table, "all_reduce", 1'500, 4));
  core::Rng rng(13);
  const std::vector<Values> gradients = random_gradients(table, 2, rng);
  for (const core::Status& status : fleet.step(gradients)) EXPECT_FALSE(status.ok());
  for (int r = 0; r < 2; ++r) EXPECT_EQ(fleet.rank(r).executor().times().comm_ms, 0);
}

TEST(ExecutorFailure, StoppingInTheMiddleOfAStepEndsIt) {
  const core::GradientTable table = mixed_table();
  for (int tensors = 0; tensors < static_cast<int>(table.tensors.size()); ++tensors) {
    Fleet fleet(2, table, kWithHost);
    fleet.run(make_strategy(table, "topk:0.1: encode@host all_gather decode@host", 1'500, 4));
    suites::on_every_rank(2, [&](int r) {
      core::Rng rng(static_cast<uint64_t>(r));
      fleet.rank(r).load(random_gradient(table, rng));
      (void)fleet.rank(r).executor().begin_step();
      for (int t = 0; t < tensors; ++t) fleet.rank(r).executor().tensor_ready(t);
      fleet.rank(r).close();
    });
  }
}

// Corrupts the first byte that every all-gather brings.
class Corrupting final : public comm::Communicator, private comm::CompletionSink {
 public:
  explicit Corrupting(std::unique_ptr<comm::Communicator> inner) : inner_(std::move(inner)) {}
  int rank() const override { return inner_->rank(); }
  int size() const override { return inner_->size(); }
  void abort() override { inner_->abort(); }
  void start(const comm::Collective& collective, comm::CompletionSink& sink, uint64_t token) override {
    sink_ = &sink;
    target_ = collective.kind == comm::Collective::Kind::all_gather ? collective.out : nullptr;
    inner_->start(collective, *this, token);
  }

 private:
  void complete(uint64_t token, core::Status status, core::Fence) override {
    if (target_ != nullptr) target_[0] ^= std::byte{1};
    sink_->complete(token, std::move(status), {});
  }
  std::unique_ptr<comm::Communicator> inner_;
  comm::CompletionSink* sink_ = nullptr;
  std::byte* target_ = nullptr;
};

TEST(ExecutorFailure, APayloadThatDoesNotDecodeIsAnErrorWhenAllGradientsWereFinite) {
  const core::GradientTable table = make_table({{1000, DType::f32}});
  std::vector<RankGroups> groups = make_groups(1);
  groups[0].flat = std::make_unique<Corrupting>(std::move(groups[0].flat));
  Rank rank(table, std::move(groups[0]), kWithHost);
  ASSERT_TRUE(rank.executor()
                  .prepare(0, make_strategy(table, "topk:0.1: encode@device all_gather decode@device", 1 << 20, 1))
                  .ok());
  rank.executor().run(0);
  core::Rng rng(11);
  Values gradient = random_gradient(table, rng);
  gradient[3] = NAN;
  EXPECT_TRUE(rank.step(gradient).ok());
  EXPECT_FALSE(rank.finite());

  gradient[3] = 0;
  const core::Status status = rank.step(gradient);
  ASSERT_FALSE(status.ok());
  EXPECT_EQ(status.error().code, Error::Code::corrupt);
  EXPECT_THAT(status.error().message, HasSubstr("bucket 0: payload"));
  EXPECT_EQ(rank.step(gradient).error().message, status.error().message);
}

// If values that are not finite travel unchanged, they do not explain the failure.
TEST(ExecutorFailure, APayloadThatDoesNotDecodeIsAnErrorWhereWhatIsNotFiniteIsCarried) {
  const core::GradientTable table = make_table({{1000, DType::f32}});
  std::vector<RankGroups> groups = make_groups(1);
  groups[0].flat = std::make_unique<Corrupting>(std::move(groups[0].flat));
  Rank rank(table, std::move(groups[0]), kWithHost);
  ASSERT_TRUE(rank.executor()
                  .prepare(0, make_strategy(table, "packed: encode@device all_gather decode@device", 1 << 20, 1))
                  .ok());
  rank.executor().run(0);
  core::Rng rng(11);
  Values gradient = random_gradient(table, rng);
  gradient[3] = NAN;
  const core::Status status = rank.step(gradient);
  ASSERT_FALSE(status.ok());
  EXPECT_FALSE(rank.finite());
  EXPECT_EQ(status.error().code, Error::Code::corrupt);
}

}  // namespace
}  // namespace gradtune::exec
