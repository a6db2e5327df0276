// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
#include "tuner/report/markup.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "tuner/report/charts.h"
#include "tuner/words.h"

namespace gradtune::tuner {
namespace {

using testing::ElementsAre;

TEST(Escape, LeavesNoMarkup) {
  EXPECT_EQ(escape("a<b>&\"'"), "a&lt;b&gt;&amp;&quot;&#39;");
  EXPECT_EQ(escape("f\xC3\xBCr 8 \xE2\x82\xAC \xF0\x9F\x8E\x89"), "f\xC3\xBCr 8 \xE2\x82\xAC \xF0\x9F\x8E\x89");
}

TEST(Escape, WhatIsNoCharacterIsReplaced) {
  const std::string bad = "\xEF\xBF\xBD";
  using namespace std::string_view_literals;
  EXPECT_EQ(escape("a\0b"sv), "a" + bad + "b");
  EXPECT_EQ(escape("\x1b[0m"sv), bad + "[0m");
  EXPECT_EQ(escape("\xC3"sv), bad) << "cut off";
  EXPECT_EQ(escape("\x80x"sv), bad + "x");
  EXPECT_EQ(escape("\xC0\xBC"sv), bad + bad) << "overlong";
  EXPECT_EQ(escape("\xE0\x80\xBC"sv), bad + bad + bad) << "overlong";
  EXPECT_EQ(escape("\xED\xA0\x80"sv), bad + bad + bad) << "surrogate";
  EXPECT_EQ(escape("\xEF\xBF\xBF"sv), bad + bad + bad) << "no character";
  EXPECT_EQ(escape("\xE2\x80\xAE"sv), bad + bad + bad) << "turns the direction of text";
  EXPECT_EQ(escape("\xF4\x90\x80\x80"sv), bad + bad + bad + bad) << "beyond the last character";
}

TEST(Words, HaveUnits) {
  EXPECT_EQ(number(0), "0.0");
  EXPECT_EQ(number(0.1234), "0.123");
  EXPECT_EQ(number(1.234), "1.23");
  EXPECT_EQ(number(-12.34), "-12.3");
  EXPECT_EQ(number(std::numeric_limits<double>::infinity()), "-");
  EXPECT_EQ(in_ms(78.92), "78.9 ms");
  EXPECT_EQ(in_seconds(7900), "7.90 s");
  EXPECT_EQ(in_seconds(3 * 3600e3), "3.00 h");
  EXPECT_EQ(in_bytes(512), "512 B");
  EXPECT_EQ(in_bytes(1536), "1.5 KiB");
  EXPECT_EQ(in_bytes(25 << 20), "25.0 MiB");
  EXPECT_EQ(percent(0.109), "10.9 %");
  EXPECT_EQ(percent(std::nan("")), "not known");
  EXPECT_EQ(count(8551818), "8,551,818");
  EXPECT_EQ(count(-1234), "-1,234");
  EXPECT_EQ(count(999), "999");
  EXPECT_EQ(plural(1, "step"), "1 step");
  EXPECT_EQ(plural(1000, "step"), "1,000 steps");
}

TEST(Words, AreShortenedBetweenCharacters) {
  EXPECT_EQ(shortened("short", 10), "short");
  EXPECT_EQ(shortened("0123456789ab", 10), "0123456...");
  EXPECT_EQ(shortened("012345\xE2\x82\xAC\xE2\x82\xAC", 10), "012345...") << "not in the middle of one";
}

TEST(Ticks, AreRound) {
  EXPECT_THAT(ticks(0, 100, 5), ElementsAre(0, 20, 40, 60, 80, 100));
  EXPECT_THAT(ticks(-3, 7, 4), ElementsAre(0, 5));
  EXPECT_FALSE(std::signbit(ticks(-1, 1, 2)[1])) << "no -0";
  EXPECT_THAT(ticks(1, 1, 4), testing::IsEmpty());
  EXPECT_THAT(ticks(0, std::nan(""), 4), testing::IsEmpty());
}

TEST(Scale, KeepsToItsRange) {
  const Scale scale(10, 20, 0, 100);
  EXPECT_EQ(scale(15), 50);
  EXPECT_EQ(scale(5), 0);
  EXPECT_EQ(scale(50), 100);
  EXPECT_EQ(Scale(3, 3, 0, 10)(3), 0) << "one value alone";
}

TEST(Coordinate, IsShortAndFinite) {
  EXPECT_EQ(coordinate(12), "12");
  EXPECT_EQ(coordinate(12.345), "12.3");
  EXPECT_EQ(coordinate(-0.01), "0");
  EXPECT_EQ(coordinate(std::nan("")), "0");
}

TEST(Letters, NameOptions) {
  EXPECT_EQ(letter(0), "A");
  EXPECT_EQ(letter(25), "Z");
  EXPECT_EQ(letter(26), "AA");
  EXPECT_EQ(letter(27), "AB");
}

}  // namespace
}  // namespace gradtune::tuner
