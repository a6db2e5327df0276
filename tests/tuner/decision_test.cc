// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
#include "tuner/decision.h"

#include <gtest/gtest.h>

#include <set>
#include <string>

namespace gradtune::tuner {
namespace {

TEST(Decision, EveryKindHasATextOfItsOwnThatIsReadBack) {
  std::set<std::string_view> texts;
  for (int kind = 0; kind <= static_cast<int>(Decision::What::repair); ++kind) {
    const auto what = static_cast<Decision::What>(kind);
    EXPECT_EQ(parse_what(to_string(what)), what);
    EXPECT_TRUE(texts.insert(to_string(what)).second) << to_string(what);
  }
  EXPECT_EQ(texts.size(), 39U);
  EXPECT_FALSE(texts.contains("unknown"));
}

TEST(Decision, EveryStageIsReadBack) {
  for (int kind = 0; kind <= static_cast<int>(Stage::audit); ++kind) {
    const auto stage = static_cast<Stage>(kind);
    EXPECT_EQ(parse_stage(to_string(stage)), stage);
  }
  for (const std::string_view text : {"", "unknown", "Race", "rac"}) EXPECT_FALSE(parse_stage(text)) << text;
}

TEST(Decision, OtherTextsAreNone) {
  for (const std::string_view text : {"", "unknown", "Commit", "commit ", "commi"})
    EXPECT_FALSE(parse_what(text)) << text;
}

}  // namespace
}  // namespace gradtune::tuner
