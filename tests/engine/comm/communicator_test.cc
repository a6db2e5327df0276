// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// Tests comm::run on communicators that break their contract. It always returns an error, or ends the process if it
// cannot return.
#include "engine/comm/communicator.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <csignal>
#include <stdexcept>

namespace gradtune::comm {
namespace {

using core::Error;
using testing::HasSubstr;

// Completes nothing until it is aborted, and optionally not even then.
class Silent final : public Communicator {
 public:
  explicit Silent(bool can_abort) : can_abort_(can_abort) {}
  int rank() const override { return 0; }
  int size() const override { return 1; }
  void start(const Collective& /*collective*/, CompletionSink& sink, uint64_t token) override {
    sink_ = &sink;
    token_ = token;
  }
  void abort() override {
    if (can_abort_) sink_->complete(token_, Error{Error::Code::lost, "aborted"}, {});
  }

 private:
  bool can_abort_;
  CompletionSink* sink_ = nullptr;
  uint64_t token_ = 0;
};

class Throwing final : public Communicator {
 public:
  int rank() const override { return 0; }
  int size() const override { return 1; }
  void start(const Collective&, CompletionSink&, uint64_t) override { throw std::runtime_error("no such cable"); }
  void abort() override { throw std::runtime_error("twice"); }
};

Collective one_number(float& number, int64_t timeout_ms) {
  return {.kind = Collective::Kind::all_reduce,
          .type = WireType::f32,
          .out = reinterpret_cast<std::byte*>(&number),
          .count = 1,
          .timeout_ms = timeout_ms};
}

TEST(Run, WithoutAnAlarmHasADeadlineAsWell) {
  float number = 1;
  for (const bool has_alarm : {false, true}) {
    Silent silent(/*can_abort=*/true);
    const std::function<core::Status()> calm = [] { return core::Status(); };
    const core::Status status = run(silent, one_number(number, 40), has_alarm ? calm : nullptr);
    ASSERT_FALSE(status.ok());
    EXPECT_EQ(status.error().code, Error::Code::timeout);
    EXPECT_THAT(status.error().message, HasSubstr("all_reduce told nothing for 1050 ms"));
  }
}

TEST(Run, AnAlarmThatThrowsIsOneThatRings) {
  float number = 1;
  Silent silent(/*can_abort=*/true);
  const core::Status status =
      run(silent, one_number(number, 60'000), []() -> core::Status { throw std::runtime_error("no store"); });
  ASSERT_FALSE(status.ok());
  EXPECT_THAT(status.error().message, HasSubstr("the alarm: no store"));
}

TEST(Run, WhatStartingThrowsIsAnError) {
  float number = 1;
  Throwing throwing;
  const core::Status status = run(throwing, one_number(number, 60'000));
  ASSERT_FALSE(status.ok());
  EXPECT_THAT(status.error().message, HasSubstr("no such cable"));
}

TEST(RunDeathTest, WhatDoesNotEndWhenItIsAbortedEndsTheProcess) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  float number = 1;
  const auto stuck = [&](const std::function<core::Status()>& alarm, int64_t timeout_ms) {
    Silent silent(/*can_abort=*/false);
    (void)run(silent, one_number(number, timeout_ms), alarm, /*most_abort_ms=*/100);
  };
  const auto alarm = [] { return core::Status(Error{Error::Code::lost, "rank 1 is lost"}); };
  const char* const line = "gradtune: all_reduce, which was aborted, did not end within 100 ms";
  EXPECT_EXIT(stuck(alarm, 60'000), testing::KilledBySignal(SIGABRT), line);
  EXPECT_EXIT(stuck({}, 40), testing::KilledBySignal(SIGABRT), line);
}

}  // namespace
}  // namespace gradtune::comm
