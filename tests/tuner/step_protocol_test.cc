// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
#include "tuner/step_protocol.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <vector>

#include "tests/tuner/kept_strategies.h"

namespace gradtune::tuner {
namespace {

core::Result<policies::Candidate> read(const std::string& text) {
  if (text == "bad") return core::Error{core::Error::Code::corrupt, "it is bad"};
  return policies::Candidate{core::uniform({{{0, 0, 4}}}, core::plain_all_reduce(), 2), text};
}

struct Rank {
  explicit Rank(int number) : protocol(runner, number, {}, &read) {
    protocol.start({{0, {core::uniform({{{0, 0, 4}}}, core::plain_all_reduce(), 1), "first"}}}, 0, false);
  }
  KeptStrategies runner;
  StepProtocol protocol;
};

// Three ranks, the first of which requests a strategy. Each learns the outcome once it is known.
class Preparing : public ::testing::Test {
 protected:
  void SetUp() override {
    for (int rank = 0; rank < 3; ++rank) ranks_.push_back(std::make_unique<Rank>(rank));
  }

  // The results in the step after that in which they received it.
  std::vector<StepProtocol::Received> prepare(const std::string& text) {
    ranks_[0]->protocol.announce({.kind = Command::Kind::prepare, .slot = 5}, text);
    step();
    ranks_[0]->protocol.announce({});
    for (const auto& rank : ranks_) statuses_.push_back(rank->protocol.receive_strategy(text));
    return step();
  }

  // Each rank's collectives took `comm_ms` of its number.
  std::vector<StepProtocol::Received> step(const std::vector<double>& comm_ms = {0, 0, 0}) {
    std::vector<double> reduced;
    std::vector<std::span<double>> words;
    for (const auto& rank : ranks_) {
      rank->protocol.begin(0);
      words.push_back(rank->protocol.control_word(true));
      reduced.resize(words.back().size(), -1e300);
      std::ranges::transform(reduced, words.back(), reduced.begin(), [](double a, double b) { return std::max(a, b); });
    }
    std::vector<StepProtocol::Received> all;
    for (size_t r = 0; r < ranks_.size(); ++r) {
      std::ranges::copy(reduced, words[r].begin());
      all.push_back(ranks_[r]->protocol.receive().value());
      ranks_[r]->protocol.carry_out(all.back().command);
      ranks_[r]->protocol.end_step({.comm_ms = comm_ms[r]});
    }
    return all;
  }

  std::vector<core::Status> statuses_;
  std::vector<std::unique_ptr<Rank>> ranks_;
};

TEST_F(Preparing, WhatIsPreparedOnAllRanksHasNoFailure) {
  for (const auto& received : prepare("good")) {
    EXPECT_TRUE(received.report.prepared && !received.report.failed);
    EXPECT_FALSE(received.failure);
  }
  for (const core::Status& status : statuses_) EXPECT_TRUE(status.ok());
}

TEST_F(Preparing, WhyItCanNotBeReadIsTold) {
  for (const auto& received : prepare("bad")) {
    EXPECT_TRUE(received.report.failed);
    EXPECT_EQ(received.failure, "it is bad");
  }
  for (const core::Status& status : statuses_) EXPECT_EQ(status.error().message, "it is bad");
}

TEST_F(Preparing, TheOthersNameTheRankThatCouldNot) {
  ranks_[1]->runner.may_prepare = [](const core::Strategy&) {
    return core::Status(core::Error{core::Error::Code::invalid, "no memory"});
  };
  const auto all = prepare("good");
  EXPECT_EQ(all[0].failure, "rank 1 could not, and warned why");
  EXPECT_EQ(all[1].failure, "no memory");
  EXPECT_EQ(all[2].failure, all[0].failure);
  EXPECT_TRUE(statuses_[0].ok() && !statuses_[1].ok() && statuses_[2].ok());
}

// On a link with a delay a rank that is ahead waits for two delays, and then for none: the link did not change.
TEST_F(Preparing, TheCollectivesOfRanksThatAreADelayApartTakeTheMeanOfTwoSteps) {
  step({16, 16, 16});
  step({16, 16, 16});
  step({30, 2, 30});
  EXPECT_EQ(step({2, 30, 2})[0].report.comm_ms, 9);
  for (const bool is_ahead : {true, false, true}) {
    EXPECT_EQ(step(is_ahead ? std::vector<double>{30, 2, 30} : std::vector<double>{2, 30, 2})[0].report.comm_ms, 16);
  }
  step({0, 0, 0});
  EXPECT_EQ(step({0, 0, 0})[0].report.comm_ms, 0) << "there were none";
}

}  // namespace
}  // namespace gradtune::tuner
