// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
#include <gmock/gmock.h>

#include <set>

#include "policies/policy.h"

namespace gradtune::policies {
namespace {

TEST(PolicyTable, EveryRowMakesAPolicyAndNamesAreUnique) {
  std::set<std::string_view> names;
  for (const PolicyRow& row : policy_table()) {
    EXPECT_TRUE(names.insert(row.name).second) << row.name;
    EXPECT_FALSE(row.summary.empty()) << row.name;
    const auto policy = make_policy(row.name, {});
    ASSERT_TRUE(policy.ok()) << row.name;
    EXPECT_EQ(policy.value()->name(), row.name);
  }
  EXPECT_THAT(names, ::testing::UnorderedElementsAre("auto", "mergecomp", "fixed", "exhaustive"));
}

TEST(PolicyTable, AnUnknownNameIsAnErrorThatListsTheKnownOnes) {
  const auto policy = make_policy("mergcomp", {});
  ASSERT_FALSE(policy.ok());
  EXPECT_EQ(policy.error().code, core::Error::Code::invalid);
  EXPECT_THAT(policy.error().message, ::testing::HasSubstr("\"mergcomp\" is unknown"));
  for (const PolicyRow& row : policy_table()) {
    EXPECT_THAT(policy.error().message, ::testing::HasSubstr(std::string(row.name)));
  }
}

// Planners of `gradtune replay`, which a job cannot have.
TEST(PolicyTable, AJobCannotHaveThePlannersOfOthers) {
  for (const char* name : {"espresso", "usbyte"}) {
    EXPECT_EQ(make_policy(name, {}).error().message,
              "policy \"" + std::string(name) + "\" is unknown; known are mergecomp, auto, fixed, exhaustive");
  }
}

}  // namespace
}  // namespace gradtune::policies
