// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
#include "hooks/within.h"

#include <gtest/gtest.h>

#include <memory>
#include <stdexcept>

namespace gradtune::test {
namespace {

constexpr std::chrono::milliseconds kShort(20), kLong(60'000);

TEST(Within, GivesWhatTheCallReturns) {
  auto answer = within(kLong, [] { return std::make_unique<int>(7); });
  ASSERT_TRUE(answer.has_value());
  EXPECT_EQ(**answer, 7);
}

TEST(Within, ThrowsWhatTheCallThrows) {
  EXPECT_THROW(within(kLong, []() -> int { throw std::runtime_error("no"); }), std::runtime_error);
}

TEST(Within, GivesNothingWhereTheCallDoesNotEndAndLetsItEndLater) {
  std::promise<void> go;
  const auto done = std::make_shared<std::promise<void>>();
  auto ended = done->get_future();
  EXPECT_FALSE(within(kShort, [gone = go.get_future().share(), done] {
                 gone.wait();
                 done->set_value();
                 return true;
               }).has_value());
  go.set_value();
  EXPECT_EQ(ended.wait_for(kLong), std::future_status::ready);
}

}  // namespace
}  // namespace gradtune::test
