// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
#include "hooks/c10d/call_log.h"

#include <gtest/gtest.h>

namespace gradtune {
namespace {

CallLog log_of(std::initializer_list<Call> calls, int64_t first_step = 0) {
  CallLog log;
  int64_t step = first_step;
  for (const Call call : calls) {
    log.enter(call, step);
    if (call == Call::step) ++step;
  }
  return log;
}

std::string difference(const CallLog& one, const CallLog& other) {
  return first_difference_of_calls(one.text(), 2, other.text(), 0);
}

TEST(CallLog, RanksThatAreNotEquallyFarDoNotDiffer) {
  const CallLog ahead = log_of({Call::backward, Call::step, Call::backward, Call::step, Call::save_checkpoint});
  EXPECT_EQ(difference(ahead, ahead), "");
  EXPECT_EQ(difference(ahead, log_of({Call::backward, Call::step})), "");
  EXPECT_EQ(difference(ahead, CallLog()), "");
}

TEST(CallLog, TheFirstCallThatDiffersIsNamed) {
  const CallLog one = log_of({Call::backward, Call::step, Call::save_checkpoint, Call::backward});
  EXPECT_EQ(
      difference(one, log_of({Call::backward, Call::step, Call::backward})),
      "rank 2 is in save_checkpoint() at step 1, where rank 0 is in backward at step 1; all ranks have to make the "
      "same calls in the same order");
  EXPECT_NE(difference(one, log_of({Call::backward, Call::step, Call::save_checkpoint, Call::load_checkpoint})), "");
  EXPECT_NE(difference(log_of({Call::backward}), log_of({Call::backward}, /*first_step=*/1)), "") << "the step counts";
}

// Only the last calls are kept: ranks that are far apart are compared by the calls that both still have.
TEST(CallLog, OldCallsAreForgotten) {
  CallLog one, other;
  one.enter(Call::load_checkpoint, 0);
  other.enter(Call::save_checkpoint, 0);
  for (int step = 0; step < 20; ++step) {
    for (CallLog* log : {&one, &other}) log->enter(Call::backward, step);
  }
  EXPECT_EQ(one.count(), 21);
  EXPECT_EQ(difference(one, other), "");
}

TEST(CallLog, WhatIsNoLogIsIgnored) {
  const std::string text = log_of({Call::backward}).text();
  for (const char* other : {"", "x", "0", "0 ", "0 sleep at step 0", "-1 backward at step 0",
                            "99999999999999999999 backward ", "0 step() at step 0\n1 ?"}) {
    EXPECT_EQ(first_difference_of_calls(text, 0, other, 1), "") << other;
  }
  EXPECT_EQ(first_difference_of_calls(text, 0, "0 backward " + std::string(1000, 'x'), 1), "");
}

}  // namespace
}  // namespace gradtune
