// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// Tests which steps are compared, their picture, and their trace.
#include "tuner/report/compared_steps.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <map>
#include <nlohmann/json.hpp>
#include <regex>
#include <set>
#include <utility>

#include "tests/tuner/report/simulated_journal.h"
#include "tuner/files/file_io.h"
#include "tuner/report/charts.h"
#include "tuner/report/html.h"
#include "tuner/report/report.h"

namespace gradtune::tuner {
namespace {

using testing::HasSubstr;
using testing::Not;
using Role = ComparedStep::Role;
using State = Standing::State;

JournalFile golden(const std::string& name) {
  return parse_journal(read_file(GRADTUNE_JOURNALS "/" + name + ".jsonl", 1 << 20).value()).value();
}

// The numbers in that group of all matches.
std::vector<double> numbers(const std::string& text, const std::string& pattern) {
  const std::regex regex(pattern);
  std::vector<double> all;
  for (std::sregex_iterator at(text.begin(), text.end(), regex), end; at != end; ++at) {
    all.push_back(std::stod((*at)[1].str()));
  }
  return all;
}

TEST(ComparedSteps, AreOfTheBaselineAndOfWhatIsCommitted) {
  const Report report = make_report(golden("lossy_200mbit")).value();
  ASSERT_EQ(report.pictures.compared.size(), 2U);
  const ComparedStep &before = report.pictures.compared[0], &after = report.pictures.compared[1];
  EXPECT_EQ(before.role, Role::before);
  EXPECT_EQ(before.label, "bf16 all_reduce baseline");
  EXPECT_EQ(before.claimed_ms, report.standing.comparison.baseline_ms);
  EXPECT_EQ(after.role, Role::after);
  EXPECT_EQ(after.label, "topk:0.02 gather, 2 buckets + small");
  EXPECT_EQ(after.claimed_ms, report.standing.comparison.committed_ms);
  ASSERT_TRUE(before.measured);
  ASSERT_TRUE(after.measured);
  EXPECT_EQ(before.measured->slot, 1) << "the faster one of two baselines";
  EXPECT_EQ(after.measured->slot, 2);
  EXPECT_EQ(after.measured->step, 24) << "the one that is nearest to the figure";
}

TEST(ComparedSteps, IsOneIfTheBaselineRuns) {
  const JournalFile journal = golden("half_1gbit");
  for (const State state : {State::baseline, State::dropped, State::undecided}) {
    const Standing standing{.state = state,
                            .label = "bf16 all_reduce baseline",
                            .baseline = "bf16 all_reduce baseline",
                            .comparison = {.baseline_ms = 660}};
    const auto compared = compared_steps(journal, standing);
    ASSERT_EQ(compared.size(), 1U);
    EXPECT_EQ(compared[0].role, Role::only);
    EXPECT_EQ(compared[0].claimed_ms, 660);
    EXPECT_EQ(compared[0].measured, measured_step(journal, 1, 660));
  }
}

TEST(ComparedSteps, WhatRunsInsteadOfADroppedStrategyIsShown) {
  const Standing standing{.state = State::dropped,
                          .label = "bf16 gather, 8 buckets",
                          .baseline = "bf16 all_reduce baseline",
                          .comparison = {.baseline_ms = 660}};
  const auto compared = compared_steps(golden("half_1gbit"), standing);
  ASSERT_EQ(compared.size(), 2U);
  EXPECT_EQ(compared[1].label, "bf16 gather, 8 buckets");
  EXPECT_EQ(compared[1].claimed_ms, 0) << "nothing is claimed for it";
  EXPECT_TRUE(compared[1].measured);
}

TEST(ComparedSteps, APinnedStrategyHasNothingToCompareWith) {
  const Report report = make_report(parse_journal(many_buckets_journal(60, 0).text).value()).value();
  ASSERT_EQ(report.pictures.compared.size(), 1U);
  EXPECT_EQ(report.pictures.compared[0].role, Role::only);
  EXPECT_EQ(report.pictures.compared[0].label, report.standing.label);
  EXPECT_TRUE(report.pictures.compared[0].measured);
}

TEST(ComparedSteps, AJournalWithoutTimesIsSaidToLackThem) {
  JournalFile journal = golden("lossy_200mbit");
  for (Timing& timing : journal.timings) {
    if (timing.slot == 1) timing.ops.clear();
  }
  const Report report = make_report(journal).value();
  ASSERT_EQ(report.pictures.compared.size(), 2U);
  EXPECT_FALSE(report.pictures.compared[0].measured);
  EXPECT_TRUE(report.pictures.compared[1].measured);
  const std::string page = to_html(report, "j");
  EXPECT_THAT(page, HasSubstr("There is no picture of <bdi>bf16 all_reduce baseline</bdi>"));
  EXPECT_THAT(comparison_chart(report, 940), HasSubstr("After: "));
  EXPECT_THAT(comparison_chart(report, 940), Not(HasSubstr("Before: ")));
}

TEST(ComparisonChart, HasOneScaleForBothSteps) {
  const Report report = make_report(golden("half_1gbit")).value();
  for (const double width : {340.0, 940.0}) {
    const std::string chart = comparison_chart(report, width);
    const auto widths = numbers(chart, R"re(width="([0-9.]+)"[^>]*class="step-ground")re");
    const auto begins = numbers(chart, R"re(<rect x="([0-9.]+)"[^>]*class="step-ground")re");
    ASSERT_EQ(widths.size(), 2U);
    EXPECT_EQ(begins[0], begins[1]);
    EXPECT_NEAR(widths[0] / widths[1],
                report.pictures.compared[0].measured->length_us / report.pictures.compared[1].measured->length_us,
                1e-2);
  }
}

TEST(ComparisonChart, LabelsAreText) {
  Report report = make_report(golden("half_1gbit")).value();
  for (ComparedStep& compared : report.pictures.compared) compared.label = "<b onclick=\"x\">&";
  const std::string page = to_html(report, "j");
  EXPECT_THAT(page, HasSubstr("&lt;b onclick=&quot;x&quot;&gt;&amp;"));
  EXPECT_THAT(page, Not(HasSubstr("<b onclick")));
}

// The page first answers if it helped.
TEST(Page, BeginsWithBeforeAndAfter) {
  const std::string page = to_html(make_report(golden("lossy_200mbit")).value(), "j");
  size_t at = 0;
  for (const std::string_view next :
       {"Did it help?", "Yes: ", ">Before<", ">1010.5 ms a step<", ">After<", ">512.5 ms a step<",
        "One step before and after", "Is it tuning?", "Step times"}) {
    const size_t found = page.find(next, at);
    ASSERT_NE(found, std::string::npos) << next;
    at = found;
  }
}

TEST(Page, SaysIfItsPictureIsOfAnotherTimeThanItsFigures) {
  Report report = make_report(golden("lossy_200mbit")).value();
  const std::string words = "machines or links were faster in step 24";
  EXPECT_THAT(to_html(report, "j"), HasSubstr(words)) << "the job became slower after the search";
  for (ComparedStep& compared : report.pictures.compared) compared.claimed_ms = 1.1e-3 * compared.measured->length_us;
  EXPECT_THAT(to_html(report, "j"), Not(HasSubstr(words)));
}

TEST(Page, OfAJobThatKeptTheBaselineSaysThatNothingIsGained) {
  Report report = make_report(golden("half_1gbit")).value();
  report.standing = {.state = State::baseline,
                     .label = "bf16 all_reduce baseline",
                     .baseline = "bf16 all_reduce baseline",
                     .comparison = {.baseline_ms = 660}};
  report.pictures.compared = compared_steps(golden("half_1gbit"), report.standing);
  const std::string page = to_html(report, "j");
  EXPECT_THAT(page, HasSubstr("No: nothing is gained. The baseline takes 660.0 ms a step."));
  EXPECT_THAT(page, Not(HasSubstr("After: ")));
}

using Events = std::multiset<std::tuple<double, double, std::string>>;

TEST(StepTrace, HasTheSpansOfThePicture) {
  for (const std::string name : {"half_1gbit", "imported_200mbit", "lossy_200mbit"}) {
    SCOPED_TRACE(name);
    const Report report = make_report(golden(name)).value();
    const auto steps = traced(report.pictures.compared, report.strategies);
    ASSERT_EQ(steps.size(), 2U);
    const auto trace = nlohmann::json::parse(chrome_trace(steps));
    std::map<size_t, Events> events;
    std::map<std::pair<size_t, size_t>, std::map<double, double>> rows;
    std::map<size_t, std::string> names;
    for (const auto& event : trace.at("traceEvents")) {
      const size_t step = event.at("pid");
      if (event.at("name") == "process_name") names[step] = event.at("args").at("name");
      if (event.at("ph") != "X") continue;
      const double begin_us = event.at("ts"), length_us = event.at("dur");
      events[step].emplace(begin_us, length_us, event.at("name"));
      rows[{step, event.at("tid")}][begin_us] = begin_us + length_us;
    }
    for (size_t s = 0; s < 2; ++s) {
      Events shown;
      for (const Bar& bar : report.pictures.compared[s].measured->bars) {
        const std::string what = bar.bucket < 0 ? bar.what : fmt::format("{} {}", bar.what, bar.bucket);
        shown.emplace(bar.begin_us, bar.end_us - bar.begin_us, what);
      }
      EXPECT_EQ(events[s], shown);
      EXPECT_THAT(names[s], HasSubstr(report.pictures.compared[s].label));
    }
    for (const auto& [row, spans] : rows) {
      double end_us = 0;
      for (const auto& [begin_us, until_us] : spans) {
        EXPECT_GE(begin_us, end_us - 1e-6) << "spans of a row must not overlap";
        end_us = until_us;
      }
    }
  }
}

}  // namespace
}  // namespace gradtune::tuner
