// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
#include "hooks/c10d/with_deadline.h"

#include <gtest/gtest.h>

#include <memory>
#include <stdexcept>

namespace gradtune::test {
namespace {

constexpr std::chrono::milliseconds kShort(20), kLong(60'000);

TEST(Within, GivesWhatTheCallReturns) {
  auto answer = with_deadline(kLong, [] { return std::make_unique<int>(7); });
  ASSERT_TRUE(answer.ok());
  EXPECT_EQ(*answer.value(), 7);
}

TEST(Within, SaysInALineWhatTheCallThrows) {
  const auto answer = with_deadline(kLong, []() -> int { throw std::runtime_error("no\nstack"); });
  ASSERT_FALSE(answer.ok());
  EXPECT_EQ(answer.error().code, core::Error::Code::lost);
  EXPECT_EQ(answer.error().message, "no");
}

TEST(Within, IsAnErrorWhereTheCallDoesNotEndAndLetsItEndLater) {
  std::promise<void> go;
  const auto done = std::make_shared<std::promise<void>>();
  auto ended = done->get_future();
  const auto answer = with_deadline(kShort, [gone = go.get_future().share(), done] {
    gone.wait();
    done->set_value();
    return true;
  });
  ASSERT_FALSE(answer.ok());
  EXPECT_EQ(answer.error().code, core::Error::Code::timeout);
  EXPECT_EQ(answer.error().message, "no answer within 20 ms");
  go.set_value();
  EXPECT_EQ(ended.wait_for(kLong), std::future_status::ready);
}

}  // namespace
}  // namespace gradtune::test
