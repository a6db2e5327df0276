// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
#include "hooks/hidden_exchange.h"

#include <gtest/gtest.h>

#include <vector>

namespace gradtune {
namespace {

constexpr int64_t kMs = 1'000'000;

exec::OpTime op(int64_t begin_ms, int64_t end_ms) { return {.begin_ns = begin_ms * kMs, .end_ns = end_ms * kMs}; }

// The program goes on from 100 ms to 200 ms.
double hidden_ms(const std::vector<exec::OpTime>& operations, const exec::StepTimes& before = {},
                 const exec::StepTimes& after = {}) {
  HiddenExchange hidden;
  hidden.begin(90 * kMs, {});  // the last hand-over counts
  hidden.begin(100 * kMs, before);
  hidden.end(200 * kMs, after);
  return hidden.ms(operations);
}

TEST(HiddenExchange, IsTheTimeUntilTheLastOperationOrUntilTheProgramWaits) {
  EXPECT_DOUBLE_EQ(hidden_ms({}), 0);
  EXPECT_DOUBLE_EQ(hidden_ms({op(80, 95)}), 0);
  EXPECT_DOUBLE_EQ(hidden_ms({op(95, 130), op(130, 160), op(120, 140)}), 60);
  EXPECT_DOUBLE_EQ(hidden_ms({op(95, 130), op(130, 260), op(260, 300)}), 100);
}

TEST(HiddenExchange, LeavesOutOperationsThatWaitedForTheTrainingThreadOrHaveNoTimes) {
  EXPECT_DOUBLE_EQ(hidden_ms({op(95, 130), op(200, 205)}), 30);
  EXPECT_DOUBLE_EQ(hidden_ms({op(95, 130), op(0, 0)}), 30);
}

TEST(HiddenExchange, LeavesOutTheWorkOfTheTrainingThreadMeanwhile) {
  const exec::StepTimes before{.encode_ms = 7, .decode_ms = 1, .wait_ms = 2};
  const exec::StepTimes after{.encode_ms = 9, .decode_ms = 4, .wait_ms = 2};
  EXPECT_DOUBLE_EQ(hidden_ms({op(95, 160)}, before, after), 55);
  EXPECT_DOUBLE_EQ(hidden_ms({op(95, 103)}, before, after), 0);
}

}  // namespace
}  // namespace gradtune
