// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// Tests what a report says and draws about rounds, on a recorded job whose steps are taken as rounds.
#include "tuner/report/round_history.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <regex>
#include <string>
#include <vector>

#include "engine/core/median.h"
#include "tuner/files/file_io.h"
#include "tuner/files/journal_writer.h"
#include "tuner/report/charts.h"
#include "tuner/report/html.h"
#include "tuner/report/report.h"
#include "tuner/report/summary.h"

namespace gradtune::tuner {
namespace {

using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;

constexpr UpdatesARound kAllowed{.least = 2, .most = 8};
const RoundChoice kFirst{.step = 0, .round = {4}, .allowed = kAllowed};
const RoundChoice kSecond{.step = 40, .round = {8}, .allowed = kAllowed, .times = {{30, 50}}};

JournalFile job_with(const std::vector<RoundChoice>& choices) {
  std::string text = read_file(GRADTUNE_JOURNALS "/half_1gbit.jsonl", 1 << 20).value();
  for (const RoundChoice& choice : choices) text += journal_line(choice) + "\n";
  return parse_journal(text).value();
}

size_t occurrences(const std::string& text, const std::string& pattern) {
  const std::regex regex(pattern);
  return static_cast<size_t>(std::distance(std::sregex_iterator(text.begin(), text.end(), regex), {}));
}

TEST(RoundHistory, OfAJobWithoutRoundsIsEmpty) {
  const RoundHistory history = round_history(job_with({}));
  EXPECT_THAT(history.rounds, IsEmpty());
  EXPECT_THAT(history.runs, IsEmpty());
  EXPECT_FALSE(history.deciding());
}

TEST(RoundHistory, HasTheTimesOfEachRoundAndTheirMedians) {
  const JournalFile journal = job_with({kSecond, kFirst});
  const RoundHistory history = round_history(journal);
  ASSERT_EQ(history.runs.size(), 2U);
  EXPECT_EQ(history.runs[0].choice.round.updates, 4);
  EXPECT_EQ(history.runs[1].choice.round.updates, 8);
  std::vector<double> exchanges[2], shares[2];
  size_t at = 0;
  for (const core::StepReport& report : journal.reports) {
    if (!(report.step_ms > 0)) continue;
    const RoundTimes& round = history.rounds.at(at++);
    const bool is_second = report.step >= 40;
    EXPECT_EQ(round.round, report.step);
    EXPECT_EQ(round.slot, report.slot);
    EXPECT_EQ(round.shape.updates, is_second ? 8 : 4);
    EXPECT_DOUBLE_EQ(round.times.exchange_ms, report.step_ms - report.compute_ms_max);
    EXPECT_DOUBLE_EQ(round.share(),
                     round.times.exchange_ms / (static_cast<double>(round.shape.updates) * report.compute_ms_max));
    EXPECT_EQ(round.counts, report.finite && !report.excluded);
    if (!round.counts) continue;
    exchanges[is_second].push_back(round.times.exchange_ms);
    shares[is_second].push_back(round.share());
  }
  EXPECT_EQ(at, history.rounds.size());
  for (size_t r = 0; r < 2; ++r) {
    EXPECT_EQ(history.runs[r].rounds, static_cast<int64_t>(exchanges[r].size()));
    EXPECT_EQ(history.runs[r].times->exchange_ms, core::median(exchanges[r]));
    EXPECT_EQ(history.runs[r].share, core::median(shares[r]));
  }
}

TEST(RoundHistory, IsExplainedByTheTimesThatDecidedOrElseByTheRoundsSince) {
  const RoundHistory decided = round_history(job_with({kFirst, kSecond}));
  EXPECT_EQ(decided.deciding()->exchange_ms, 30);
  EXPECT_EQ(decided.deciding()->update_ms, 50);
  const RoundHistory first = round_history(job_with({kFirst}));
  EXPECT_EQ(first.deciding()->exchange_ms, first.runs[0].times->exchange_ms);
  RoundChoice late = kFirst;
  late.step = 100'000;
  EXPECT_FALSE(round_history(job_with({late})).runs[0].share);
}

TEST(RoundWords, SayWhyRoundsAreAsLongAsTheyAre) {
  const auto said = [](RoundChoice choice) { return summary(make_report(job_with({kFirst, choice})).value()); };
  EXPECT_THAT(said(kSecond), HasSubstr("An exchange takes 30.0 ms, which is 7.5 % of the updates between"));
  EXPECT_THAT(said(kSecond), HasSubstr("At most 5.0 % is wanted, for which 12 updates are needed, but no more than 8 "
                                       "are allowed."));
  RoundChoice enough = kSecond;
  enough.round.updates = 6;
  enough.times->exchange_ms = 15;
  EXPECT_THAT(said(enough), HasSubstr("for which 6 updates are enough."));
  RoundChoice cheap = kSecond;
  cheap.round.updates = 2;
  cheap.times->exchange_ms = 1;
  EXPECT_THAT(said(cheap), HasSubstr("for which 1 update is enough, but no fewer than 2 are allowed."));
}

TEST(RoundWords, SayWhichUpdatesGoOnBesideAnExchange) {
  RoundChoice delayed = kSecond;
  delayed.round = {.updates = 4, .delay = 1};
  delayed.times->exchange_ms = 55;
  delayed.allowed.delay.reset();
  const Report report = make_report(job_with({kFirst, delayed})).value();
  EXPECT_THAT(summary(report), HasSubstr("An exchange takes 55.0 ms, beside which 1 update goes on, and ranks wait for "
                                         "2.5 % of the updates between"));
  EXPECT_THAT(summary(report), HasSubstr("for which 2 updates are enough"));
  EXPECT_THAT(rounds_chart(report, 340), HasSubstr(">4 (1)</text>"));
  EXPECT_THAT(round_length_chart(report, 340), HasSubstr("<title>4 updates: predicted 2.5 %</title>"));
  for (const RoundTimes& round : report.rounds.rounds) {
    if (round.round < 40) continue;
    EXPECT_DOUBLE_EQ(round.share(),
                     std::max(0.0, round.times.exchange_ms - round.times.update_ms) / (4 * round.times.update_ms));
  }
}

// Two exchanges of 55 ms in a round, each beside an update of 50 ms: ranks wait for 10 of 200 ms.
TEST(RoundWords, SayThatFragmentsAreExchangedOneAfterTheOther) {
  RoundChoice streamed = kSecond;
  streamed.round = {.updates = 4, .delay = 1, .fragments = 2};
  streamed.times->exchange_ms = 55;
  streamed.allowed.delay.reset();
  streamed.allowed.fragments = 2;
  const Report report = make_report(job_with({kFirst, streamed})).value();
  EXPECT_THAT(summary(report),
              HasSubstr("The model is exchanged in 2 fragments, one after the other. An exchange takes "
                        "55.0 ms, beside which 1 update goes on, and ranks wait for 5.0 % of the "
                        "updates of a round, all fragments together"));
  EXPECT_THAT(round_length_chart(report, 340), HasSubstr("<title>4 updates: predicted 5.0 %</title>"));
}

TEST(RoundsChart, HasADotForEachRoundAndTheWantedShare) {
  const Report report = make_report(job_with({kFirst, kSecond})).value();
  for (const double width : {340.0, 940.0}) {
    const std::string svg = rounds_chart(report, width);
    EXPECT_THAT(svg, HasSubstr("wanted: 5 %"));
    EXPECT_THAT(svg, HasSubstr(">4</text>"));
    EXPECT_THAT(svg, HasSubstr(">8</text>"));
    EXPECT_GE(occurrences(svg, "M[0-9.]+ [0-9.]+h0"), report.rounds.rounds.size() / 2);
  }
  EXPECT_EQ(rounds_chart(make_report(job_with({})).value(), 340), "");
}

// The prediction falls as the number of updates grows: the chosen one lies on its line.
TEST(RoundLengthChart, HasThePredictionTheChoiceAndWhatWasMeasured) {
  const Report report = make_report(job_with({kFirst, kSecond})).value();
  const std::string svg = round_length_chart(report, 340);
  EXPECT_THAT(svg, HasSubstr("<title>8 updates: predicted 7.5 %</title>"));
  EXPECT_THAT(svg, HasSubstr("<title>2 to 8 are allowed</title>"));
  EXPECT_THAT(svg, HasSubstr("<title>4 updates: measured "));
  EXPECT_THAT(svg, HasSubstr("wanted: 5 %"));
  EXPECT_EQ(round_length_chart(make_report(job_with({})).value(), 340), "");
}

TEST(Page, OfAJobInRoundsHasASectionOfThem) {
  const std::string page = to_html(make_report(job_with({kFirst, kSecond})).value(), "j");
  EXPECT_THAT(page, HasSubstr("<section id=\"rounds\"><h2>Rounds</h2>"));
  EXPECT_THAT(page, HasSubstr("<h3>Why so many updates</h3>"));
  EXPECT_LT(page.size(), kMostPageBytes);
  EXPECT_THAT(to_html(make_report(job_with({})).value(), "j"), Not(HasSubstr("id=\"rounds\"")));
  RoundChoice unknown = kFirst;
  unknown.step = 100'000;
  EXPECT_THAT(to_html(make_report(job_with({unknown})).value(), "j"), HasSubstr("<section id=\"rounds\">"));
}

TEST(Page, OfVeryManyRoundsAndChangesIsSmall) {
  std::vector<RoundChoice> choices;
  for (int64_t c = 0; c < 3000; ++c) {
    choices.push_back(kSecond);
    choices.back().step = c;
    choices.back().round.updates = 2 + c % 7;
  }
  EXPECT_LT(to_html(make_report(job_with(choices)).value(), "j").size(), kMostPageBytes);
}

}  // namespace
}  // namespace gradtune::tuner
