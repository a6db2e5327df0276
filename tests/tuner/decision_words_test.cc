// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
#include "tuner/decision_words.h"

#include <gtest/gtest.h>

#include <cmath>
#include <set>

namespace gradtune::tuner {
namespace {

using What = Decision::What;

std::string words(What what, double value) {
  return in_words({.step = 9, .stage = Stage::watch, .what = what, .label = "bf16 all_reduce", .value = value});
}

TEST(DecisionWords, EveryKindHasASentenceOfItsOwn) {
  std::set<std::string> sentences;
  for (int kind = 0; kind <= static_cast<int>(What::repair); ++kind) {
    EXPECT_TRUE(sentences.insert(words(static_cast<What>(kind), 0.5)).second) << kind;
  }
  EXPECT_FALSE(sentences.contains("unknown"));
}

TEST(DecisionWords, LogRatiosArePercent) {
  EXPECT_EQ(words(What::drift, std::log(1.25)), "steps take 25 % longer than before");
  EXPECT_EQ(words(What::eliminate, std::log(1.1)), "bf16 all_reduce is out, 10.0 % behind the best");
  EXPECT_EQ(words(What::race_won, std::log(2.0)),
            "bf16 all_reduce wins the race, where it took 50.0 % less than the baseline");
}

TEST(DecisionWords, WhatIsNotKnownIsSaid) {
  EXPECT_EQ(words(What::measure, 0), "bf16 all_reduce could not be measured");
  EXPECT_EQ(words(What::gain_at_least, std::nan("")), "the gain of bf16 all_reduce is at least not known");
}

}  // namespace
}  // namespace gradtune::tuner
