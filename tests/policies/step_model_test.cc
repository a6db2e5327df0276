// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
#include "tests/policies/step_model.h"

#include <gtest/gtest.h>

#include "tests/policies/jobs.h"

namespace gradtune::policies::testing {
namespace {

// Two tensors of 1000 elements, ready at 0 and at 5 ms; a link of 1 byte a microsecond; all other work is free.
StepModel plain_model() {
  return {.table = make_table({tensor("a", 1000, 0), tensor("b", 1000, 5000)}),
          .traits = known_traits(),
          .link_bytes_per_us = 1,
          .round_us = 0,
          .first_ready_us = 10'000,
          .program_us = 0,
          .copy_ns = 0,
          .add_ns = 0,
          .compress_ns = 0};
}

core::Strategy strategy(const StepModel& model, const core::Option& option, int buckets) {
  return core::uniform(core::cut(model.table, 8000 / buckets, 8000 / buckets, true), option, 2);
}

TEST(StepModel, OneBucketIsSentWhenBackwardIsOver) {
  const StepModel model = plain_model();
  EXPECT_DOUBLE_EQ(model.step_ms(strategy(model, core::plain_all_reduce(), 1)), 10 + 5 + 8);
}

TEST(StepModel, TheFirstOfTwoHidesBehindBackward) {
  const StepModel model = plain_model();
  EXPECT_DOUBLE_EQ(model.step_ms(strategy(model, core::plain_all_reduce(), 2)), 10 + 5 + 4);
}

TEST(StepModel, APayloadOfHalfTheSizeTakesHalfTheTime) {
  const StepModel model = plain_model();
  EXPECT_DOUBLE_EQ(model.step_ms(strategy(model, core::gather_payloads({"bf16"}, core::Place::device), 1)), 10 + 5 + 4);
  EXPECT_DOUBLE_EQ(model.step_ms(strategy(model, core::two_step({"bf16"}, core::Place::device), 1)), 10 + 5 + 2 + 2);
}

TEST(StepModel, EncodingOnTheDeviceDelaysBackwardAndOnTheHostDoesNot) {
  StepModel model = plain_model();
  model.copy_ns = 1000;  // 1 ms to encode a bucket of 1000 elements, and 1 ms to decode it
  model.host_slowdown = 1;
  // Device: encode a to 11, backward to 16, encode b to 17, its transfer to 19 hides decoding a, decode b to 20.
  EXPECT_DOUBLE_EQ(model.step_ms(strategy(model, core::gather_payloads({"bf16"}, core::Place::device), 2)), 20);
  // Host: backward ends at 15, encode b to 16, transfer to 18, decode to 19.
  EXPECT_DOUBLE_EQ(model.step_ms(strategy(model, core::gather_payloads({"bf16"}, core::Place::host), 2)), 19);
}

TEST(StepModel, EveryRoundAndEveryProgramHasItsFixedCost) {
  StepModel model = plain_model();
  model.round_us = 100;
  model.program_us = 10;
  EXPECT_DOUBLE_EQ(model.step_ms(strategy(model, core::plain_all_reduce(), 1)), 23 + 0.2);
  EXPECT_DOUBLE_EQ(model.step_ms(strategy(model, core::gather_payloads({"none"}, core::Place::device), 1)),
                   23 + 0.1 + 0.02);
}

}  // namespace
}  // namespace gradtune::policies::testing
