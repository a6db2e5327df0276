// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// Replays journals of real jobs (two ranks of the reference job on a shaped network, 2026-11-25). A tuner with the
// same step times decides the same, byte for byte on a machine with the same mathematical library. Elsewhere figures
// may differ in their last digit, so they are compared as numbers. A change of the tuner that gives a decision another
// value, and leaves which strategies run as it was, changes that value in the journals. After any other change of
// decisions the recordings no longer fit, and new journals are needed: GRADTUNE_JOURNAL=FILE examples/cluster ...
// train_fashion_mnist --policy mergecomp, whose proposals do not move with every change of the cost model.
#include <gtest/gtest.h>

#include <cmath>
#include <nlohmann/json.hpp>

#include "tuner/files/file_io.h"
#include "tuner/files/journal_reader.h"

namespace gradtune::tuner {
namespace {

class JournalGolden : public testing::TestWithParam<std::string> {};
INSTANTIATE_TEST_SUITE_P(Runs, JournalGolden, testing::Values("half_1gbit", "lossy_200mbit", "imported_200mbit"),
                         [](const auto& run) { return run.param; });

TEST_P(JournalGolden, DecidesTheSameAgain) {
  const std::string text = read_file(GRADTUNE_JOURNALS "/" + GetParam() + ".jsonl", 1 << 20).value();
  const auto file = parse_journal(text);
  ASSERT_TRUE(file.ok()) << file.error().message;
  const auto again = decide_again(file.value());
  ASSERT_TRUE(again.ok()) << again.error().message;
  EXPECT_GE(again.value().size(), 5u) << "the run got somewhere";
  ASSERT_EQ(again.value().size(), file.value().decided.size());
  for (size_t i = 0; i < again.value().size(); ++i) {
    auto then = nlohmann::json::parse(file.value().decided[i]), now = nlohmann::json::parse(again.value()[i]);
    if (then["kind"] == "decision") {
      const double value = then["value"];
      EXPECT_NEAR(now["value"].get<double>(), value, 1e-9 * std::abs(value)) << again.value()[i];
      now["value"] = value;
    }
    EXPECT_EQ(now, then);
  }
}

TEST_P(JournalGolden, DecidesTheSameBytesEveryTime) {
  const std::string text = read_file(GRADTUNE_JOURNALS "/" + GetParam() + ".jsonl", 1 << 20).value();
  const JournalFile file = parse_journal(text).value();
  EXPECT_EQ(decide_again(file).value(), decide_again(file).value());
}

// Shows that the test above can fail: other times lead to other decisions.
TEST_P(JournalGolden, OtherTimesDecideOtherwise) {
  const std::string text = read_file(GRADTUNE_JOURNALS "/" + GetParam() + ".jsonl", 1 << 20).value();
  JournalFile file = parse_journal(text).value();
  for (size_t r = 0; r < file.reports.size(); r += 3) file.reports[r].step_ms *= 1.2;
  EXPECT_NE(decide_again(file).value(), file.decided);
}

}  // namespace
}  // namespace gradtune::tuner
