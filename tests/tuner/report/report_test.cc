// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// Tests reports of recorded jobs (tests/golden/journals), figure by figure, and of simulated ones, which are
// compared with their tuners' knowledge.
#include "tuner/report/report.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <set>
#include <utility>

#include "engine/core/median.h"
#include "engine/core/rng.h"
#include "tests/tuner/report/simulated_journal.h"
#include "tuner/decision_words.h"
#include "tuner/files/file_io.h"
#include "tuner/files/journal_writer.h"
#include "tuner/report/charts.h"
#include "tuner/report/html.h"
#include "tuner/report/summary.h"

namespace gradtune::tuner {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using State = Standing::State;
using What = Decision::What;

std::string golden(const std::string& name) {
  return read_file(GRADTUNE_JOURNALS "/" + name + ".jsonl", 1 << 20).value();
}

Report report_of(std::string_view text) { return make_report(parse_journal(text).value()).value(); }

std::vector<std::string> lines_of(const std::string& text) {
  std::vector<std::string> lines;
  for (size_t begin = 0, end; (end = text.find('\n', begin)) != std::string::npos; begin = end + 1) {
    lines.push_back(text.substr(begin, end + 1 - begin));
  }
  return lines;
}

TEST(GoldenReport, SaysWhatWasChosenAndHowSureThatIs) {
  const Report report = report_of(golden("half_1gbit"));
  EXPECT_TRUE(report.decides_the_same);
  EXPECT_THAT(report.lacks, IsEmpty());
  EXPECT_EQ(report.standing.state, State::committed);
  EXPECT_EQ(report.stage, Stage::audit);
  EXPECT_EQ(report.chosen.label, "bf16 all_reduce, 8 buckets");
  const Standing& standing = report.standing;
  EXPECT_EQ(standing.baseline, "bf16 all_reduce baseline");
  EXPECT_EQ(standing.since, 216);
  EXPECT_EQ(standing.pairs, 8);
  EXPECT_NEAR(standing.comparison.gain, 0.10932541723772604, 1e-9);
  EXPECT_NEAR(standing.comparison.gain_low, 0.08614400696688722, 1e-9);
  EXPECT_NEAR(standing.comparison.gain_high, 0.14282851538431507, 1e-9);
  EXPECT_NEAR(standing.comparison.committed_ms, (1 - standing.comparison.gain) * standing.comparison.baseline_ms, 1e-9);
  EXPECT_EQ(standing.first_commit, 219);
  EXPECT_THAT(headline(report), HasSubstr("10.9 % less time a step"));
}

TEST(GoldenReport, HasEveryStepAndStage) {
  const Report report = report_of(golden("half_1gbit"));
  ASSERT_EQ(report.steps.size(), 399U);
  EXPECT_EQ(std::ranges::count_if(report.steps, &ReportStep::counts), 386);
  EXPECT_EQ(report.steps[0].ms, 1401.096257);
  EXPECT_FALSE(report.steps[0].counts);
  EXPECT_THAT(report.stages, ElementsAre(StageRun{Stage::observe, 0, 18}, StageRun{Stage::partition, 18, 84},
                                         StageRun{Stage::race, 84, 135}, StageRun{Stage::confirm, 135, 217},
                                         StageRun{Stage::watch, 217, 382}, StageRun{Stage::audit, 382, 399}));
  std::vector<std::pair<int64_t, What>> events;
  for (const Decision& event : report.events) events.emplace_back(event.step, event.what);
  EXPECT_THAT(events,
              ElementsAre(std::pair(17, What::baseline), std::pair(134, What::race_won), std::pair(134, What::confirm),
                          std::pair(216, What::commit), std::pair(381, What::drift)));
}

TEST(GoldenReport, HasWhatWasMeasured) {
  const Report report = report_of(golden("half_1gbit"));
  ASSERT_EQ(report.trials.size(), 12U);
  EXPECT_EQ(report.trials[0], (Trial{24, "bf16 gather, 8 buckets", {}, 595.569126}));
  EXPECT_EQ(report.trials[11], (Trial{83, "bf16 all_reduce, 4 buckets", {}, 776.2850669999999}));
}

// The time of a block of five steps, the first of which is dropped, from the journal's steps.
double block_ms(const JournalFile& journal, int64_t begin, int32_t slot) {
  std::vector<double> ms;
  for (const core::StepReport& step : journal.reports) {
    if (step.step <= begin || step.step >= begin + 5) continue;
    EXPECT_EQ(step.slot, slot) << "step " << step.step;
    ms.push_back(step.step_ms);
  }
  return core::median(ms);
}

TEST(GoldenReport, ItsRaceHasTheBlocksOfEachArm) {
  const JournalFile journal = parse_journal(golden("half_1gbit")).value();
  const Report report = make_report(journal).value();
  ASSERT_EQ(report.races.size(), 1U);
  const RaceRecord& race = report.races[0];
  EXPECT_EQ(std::pair(race.begin, race.end), (std::pair<int64_t, int64_t>(86, 135)));
  EXPECT_EQ(race.rounds, 3);
  ASSERT_EQ(race.arms.size(), 3U);
  const std::map<int32_t, std::vector<int64_t>> begins = {
      {1, {91, 103, 125}}, {4, {86, 113, 130}}, {2, {96, 108, 120}}};
  double squares = 0;
  for (const RaceArm& arm : race.arms) {
    ASSERT_EQ(arm.blocks.size(), 3U) << arm.slot;
    double sum = 0, of_squares = 0;
    for (size_t round = 0; round < 3; ++round) {
      EXPECT_EQ(arm.blocks[round].begin, begins.at(arm.slot)[round]);
      EXPECT_EQ(arm.blocks[round].end, arm.blocks[round].begin + 5);
      EXPECT_EQ(arm.blocks[round].step_ms, block_ms(journal, arm.blocks[round].begin, arm.slot));
      const double log = std::log(*arm.blocks[round].step_ms / *race.arms[0].blocks[round].step_ms);
      sum += log;
      of_squares += log * log;
    }
    if (arm.slot == 1) continue;
    EXPECT_NEAR(*arm.log_ratio, sum / 3, 1e-12);
    squares += of_squares - sum * sum / 3;
  }
  // Two arms of three rounds leave four degrees of freedom: Student's t is 2.776.
  for (size_t a = 1; a < 3; ++a) {
    ASSERT_TRUE(race.arms[a].interval);
    EXPECT_NEAR(race.arms[a].interval->high - *race.arms[a].log_ratio, 2.776 * std::sqrt(squares / 4 / 3), 1e-4);
    EXPECT_NEAR(race.arms[a].interval->high + race.arms[a].interval->low, 2 * *race.arms[a].log_ratio, 1e-12);
  }
  EXPECT_EQ(race.arms[0].slot, 1) << "the baseline";
  EXPECT_TRUE(race.arms[1].has_won);
  EXPECT_EQ(report.label(race.arms[1].slot), "bf16 all_reduce, 8 buckets");
  EXPECT_FALSE(race.arms[2].has_won);
}

TEST(GoldenReport, ItsPairsAreThoseThatTheGainComesFrom) {
  const JournalFile journal = parse_journal(golden("half_1gbit")).value();
  const Report report = make_report(journal).value();
  ASSERT_EQ(report.tests.size(), 1U);
  const PairTest& test = report.tests[0];
  EXPECT_EQ(test.verdict, PairTest::Verdict::committed);
  EXPECT_EQ(test.slots, (std::vector<int32_t>{4, 1}));
  ASSERT_EQ(test.pairs_ms.size(), 8U);
  std::map<int64_t, int32_t> slot_in;
  for (const core::StepReport& step : journal.reports) slot_in[step.step] = step.slot;
  double logs = 0;
  for (size_t pair = 0; pair < 8; ++pair) {
    const int64_t begin = 137 + 10 * static_cast<int64_t>(pair);
    const bool is_first = slot_in.at(begin) == 4;
    EXPECT_EQ(test.pairs_ms[pair], (std::vector{block_ms(journal, is_first ? begin : begin + 5, 4),
                                                block_ms(journal, is_first ? begin + 5 : begin, 1)}));
    logs += std::log(test.pairs_ms[pair][0] / test.pairs_ms[pair][1]);
  }
  EXPECT_NEAR(1 - std::exp(logs / 8), 0.10932541723772604, 1e-9);
  // Among the means of all subsets the tenth lowest one is too high with a probability of 10 / 256, less than 4 %.
  std::vector<double> means;
  for (unsigned subset = 1; subset < 256; ++subset) {
    double sum = 0;
    int count = 0;
    for (unsigned pair = 0; pair < 8; ++pair) {
      if ((subset >> pair & 1U) == 0) continue;
      sum += std::log(test.pairs_ms[pair][1] / test.pairs_ms[pair][0]);
      ++count;
    }
    means.push_back(sum / count);
  }
  std::ranges::sort(means);
  EXPECT_NEAR(*test.gain_low, 1 - std::exp(-means[9]), 1e-12);
}

TEST(GoldenReport, HasTheBucketsOfWhatWasChosen) {
  const Report report = report_of(golden("half_1gbit"));
  ASSERT_EQ(report.buckets.size(), 8U);
  int64_t bytes = 0;
  std::vector<int> places;
  for (const BucketRow& bucket : report.buckets) {
    bytes += bucket.bytes;
    EXPECT_EQ(bucket.option, "bf16: encode@device all_reduce decode@device");
    EXPECT_EQ(bucket.kind, 0);
    EXPECT_FALSE(bucket.uses_host);
    EXPECT_FALSE(bucket.is_lossy);
    places.insert(places.end(), bucket.places.begin(), bucket.places.end());
  }
  EXPECT_EQ(bytes, 4 * 8'551'818);
  EXPECT_THAT(places, ElementsAre(0, 1, 2, 3, 4, 5, 6, 7));
  EXPECT_EQ(report.buckets[0].first, "9.weight");
  EXPECT_EQ(report.buckets[7].last, "0.bias");
}

// Step 33 is the timed one nearest to the claimed figure. Its 24 operations begin where the predicted ones begin.
TEST(GoldenReport, HasAStepAsItWasMeasuredBesideThePredictedOne) {
  const Report report = report_of(golden("half_1gbit"));
  const StepPicture& picture = report.pictures.chosen;
  EXPECT_EQ(picture.slot, 4);
  EXPECT_THAT(picture.lacks, IsEmpty());
  ASSERT_EQ(picture.measured.size(), 24U);
  const auto operations = [](const std::vector<Bar>& bars) {
    std::multiset<std::tuple<int32_t, std::string>> all;
    for (const Bar& bar : bars) {
      if (bar.bucket >= 0) all.emplace(bar.bucket, bar.what);
    }
    return all;
  };
  EXPECT_EQ(operations(picture.measured), operations(picture.predicted));
  double begin = 1e18, end = 0, predicted_begin = 1e18;
  for (const Bar& bar : picture.measured) {
    begin = std::min(begin, bar.begin_us);
    end = std::max(end, bar.end_us);
  }
  for (const Bar& bar : picture.predicted) {
    if (bar.bucket >= 0) predicted_begin = std::min(predicted_begin, bar.begin_us);
  }
  EXPECT_NEAR(end - begin, 339321.9, 1e-6);
  EXPECT_NEAR(begin, predicted_begin, 1e-6);
}

TEST(GoldenReport, KnowsTheAuditOfAnotherJob) {
  const Report report = report_of(golden("lossy_200mbit"));
  EXPECT_TRUE(report.decides_the_same);
  EXPECT_EQ(report.standing.state, State::committed);
  ASSERT_EQ(report.tests.size(), 2U);
  const PairTest& audit = report.tests[1];
  EXPECT_EQ(audit.kind, PairTest::Kind::audit);
  EXPECT_EQ(audit.verdict, PairTest::Verdict::kept);
  EXPECT_NEAR(*audit.gain, 0.36480395688709955, 1e-12);
  ASSERT_EQ(audit.pairs_ms.size(), 2U);
  double logs = 0;
  for (const auto& pair : audit.pairs_ms) logs += std::log(pair[0] / pair[1]);
  EXPECT_NEAR(1 - std::exp(logs / 2), *audit.gain, 1e-9);
  EXPECT_EQ(std::ranges::count_if(report.buckets, &BucketRow::is_lossy), 2);
}

TEST(GoldenReport, KnowsTheRaceOfAnImportedStrategy) {
  const Report report = report_of(golden("imported_200mbit"));
  EXPECT_TRUE(report.decides_the_same);
  EXPECT_EQ(report.steps.size(), 129U) << "the one before the first step took no time";
  ASSERT_EQ(report.races.size(), 1U);
  ASSERT_EQ(report.races[0].arms.size(), 2U);
  EXPECT_EQ(report.races[0].arms[1].slot, kImportedSlot);
  EXPECT_TRUE(report.races[0].arms[1].has_won);
  EXPECT_NEAR(-*report.races[0].arms[1].log_ratio, 1.090084497266135, 1e-9) << "as the tuner saw it";
  EXPECT_THAT(report.trials, IsEmpty());
}

TEST(Report, OfAnotherVersionsJournalSaysWhatItLacks) {
  std::string text = golden("half_1gbit");
  const std::string was = R"("what":"measure","label":"all_reduce, 8 buckets")";
  ASSERT_NE(text.find(was), std::string::npos);
  text.replace(text.find(was), was.size(), R"("what":"measure","label":"all_reduce, 9 buckets")");
  const Report report = report_of(text);
  EXPECT_FALSE(report.decides_the_same);
  EXPECT_THAT(report.lacks, ElementsAre(HasSubstr("decides otherwise")));
  EXPECT_EQ(report.standing.state, State::committed);
  EXPECT_EQ(report.chosen.label, "bf16 all_reduce, 8 buckets");
  EXPECT_THAT(report.races, IsEmpty());
  ASSERT_EQ(report.tests.size(), 1U);
  EXPECT_THAT(report.tests[0].pairs_ms, IsEmpty());
  EXPECT_EQ(report.buckets.size(), 8U);
  // The job's own account of its decision does not depend on this program's view of the same steps.
  EXPECT_EQ(report.standing, report_of(golden("half_1gbit")).standing);
  EXPECT_THAT(to_html(report, "j"), HasSubstr("decides otherwise"));
}

TEST(Report, OfAJobInRoundsSaysHowOftenItExchangesAndWhy) {
  const RoundChoice first{.step = 1, .round = {4}, .allowed = {.least = 1, .most = 8}};
  RoundChoice second = first;
  second.step = 30;
  second.round.updates = 8;
  second.times = {15, 40};
  const std::string text = golden("half_1gbit") + journal_line(first) + "\n";
  EXPECT_THAT(summary(report_of(text)), HasSubstr("After every 4 updates, since round 1; 1 to 8 are allowed."));
  EXPECT_THAT(
      to_html(report_of(text + journal_line(second) + "\n"), "j"),
      HasSubstr("After every 8 updates, since round 30; 1 to 8 are allowed. An exchange takes 15.0 ms, which is "
                "4.7 % of the updates between; an update takes 40.0 ms."));
  EXPECT_THAT(summary(report_of(golden("half_1gbit"))), testing::Not(HasSubstr("How often")));
}

TEST(Report, OfAJournalThatWasCutOffAnywhereIsAReport) {
  for (const std::string name : {"half_1gbit", "imported_200mbit"}) {
    const std::string text = golden(name);
    std::set<State> states;
    bool has_not_begun = false;
    int line = 0;
    for (size_t at = text.find('\n'); at != std::string::npos; at = text.find('\n', at + 1), ++line) {
      if (line > 8 && line % 37 != 0) continue;
      const Report report = report_of(text.substr(0, at + 1) + text.substr(at + 1, 20));
      states.insert(report.standing.state);
      has_not_begun = has_not_begun || !report.has_begun;
      EXPECT_THAT(to_html(report, "cut off"), HasSubstr("Is it tuning?"));
      EXPECT_THAT(summary(report), HasSubstr("Is it tuning?"));
    }
    EXPECT_TRUE(has_not_begun);
    EXPECT_TRUE(states.contains(State::undecided));
    EXPECT_TRUE(states.contains(State::committed));
  }
}

// Lines that are lost, doubled, reordered, or of another stage: possible damage by a file system or an editor.
TEST(Report, OfAJournalThatWasDamagedIsAReportOrAnError) {
  const core::Rng rng(1);
  int reports = 0;
  constexpr int kJournals = 60;
  for (int j = 0; j < kJournals; ++j) {
    core::Rng random = rng.fork(std::to_string(j));
    std::vector<std::string> lines = lines_of(golden(j % 2 == 0 ? "lossy_200mbit" : "imported_200mbit"));
    for (int change = 0; change < 3; ++change) {
      const size_t at = 2 + random.below(lines.size() - 2), other = 2 + random.below(lines.size() - 2);
      const uint64_t kind = random.below(4);
      if (kind == 0) lines.erase(lines.begin() + static_cast<std::ptrdiff_t>(at));
      if (kind == 1) lines.insert(lines.begin() + static_cast<std::ptrdiff_t>(at), lines[other]);
      if (kind == 2) std::swap(lines[at], lines[other]);
      if (const size_t stage = lines[at].find(R"("stage":"watch")"); kind == 3 && stage != std::string::npos) {
        lines[at].replace(stage, 15, R"("stage":"confirm")");
      }
    }
    std::string damaged;
    for (const std::string& line : lines) damaged += line;
    const auto journal = parse_journal(damaged);
    if (!journal) continue;
    const Report report = make_report(journal.value()).value();
    EXPECT_LT(to_html(report, "damaged").size(), kMostPageBytes);
    EXPECT_THAT(summary(report), HasSubstr("Is it tuning?"));
    ++reports;
  }
  EXPECT_GT(reports, kJournals / 3);
}

TEST(Report, AStepThatIsThereTwiceCountsOnce) {
  std::string text = golden("half_1gbit"), twice = text;
  for (size_t begin = 0, end; (end = text.find('\n', begin)) != std::string::npos; begin = end + 1) {
    const std::string line = text.substr(begin, end + 1 - begin);
    if (line.find(R"("kind":"step")") != std::string::npos) twice += line;
  }
  const auto steps = [](const std::string& journal) {
    std::vector<std::pair<int64_t, double>> of_report;
    for (const ReportStep& step : report_of(journal).steps) of_report.emplace_back(step.step, step.ms);
    return of_report;
  };
  EXPECT_EQ(steps(twice), steps(text));
  EXPECT_TRUE(std::ranges::is_sorted(steps(twice)));
}

TEST(Report, TakesReadyTimesFromATraceOfTheSameModel) {
  const std::string text = golden("half_1gbit");
  const JournalFile whole = parse_journal(text).value();
  const TraceFile trace = trace_of(whole).value();
  // Up to the second table, which has the times.
  const size_t second = text.find(R"({"kind":"table")", text.find(R"({"kind":"table")") + 1);
  const JournalFile begun = parse_journal(text.substr(0, second)).value();
  const Report without = make_report(begun).value();
  EXPECT_THAT(without.pictures.chosen.predicted, IsEmpty());
  EXPECT_THAT(without.pictures.chosen.lacks, testing::Contains(HasSubstr("--trace")));
  const Report with = make_report(begun, trace).value();
  EXPECT_THAT(with.pictures.chosen.predicted, testing::Not(IsEmpty()));
  TraceFile other = trace;
  other.table.tensors[0].name += "x";
  const auto refused = make_report(begun, other);
  ASSERT_FALSE(refused.ok());
  EXPECT_THAT(refused.error().message, HasSubstr("another model"));
}

TEST(Report, OfASimulatedJobAgreesWithItsTuner) {
  const SimulatedJournal journal = reference_journal(400);
  const Report report = report_of(journal.text);
  EXPECT_TRUE(report.decides_the_same);
  ASSERT_TRUE(journal.outcome.committed);
  EXPECT_EQ(report.standing.state, State::committed);
  EXPECT_EQ(report.chosen.label, journal.chosen);
  EXPECT_EQ(report.standing.comparison, static_cast<const Comparison&>(journal.outcome));
  EXPECT_EQ(report.standing.tuning_steps, journal.outcome.steps);
  for (const Trial& trial : report.trials) EXPECT_TRUE(trial.predicted_ms) << trial.label << ": auto has a model";
  ASSERT_FALSE(report.tests.empty());
  EXPECT_EQ(static_cast<int>(report.tests.back().pairs_ms.size()), journal.outcome.pairs);
  double logs = 0;
  for (const auto& pair : report.tests.back().pairs_ms) logs += std::log(pair[0] / pair[1]);
  EXPECT_NEAR(1 - std::exp(logs / journal.outcome.pairs), journal.outcome.gain, 1e-9);
  for (const RaceRecord& race : report.races) EXPECT_LE(std::ranges::count_if(race.arms, &RaceArm::has_won), 1);
}

TEST(Report, TellsOfChangesAndBans) {
  const SimulatedJournal journal = reference_journal(2000, 700, 500);
  const Report report = report_of(journal.text);
  EXPECT_TRUE(report.decides_the_same);
  EXPECT_EQ(report.stage, journal.stage);
  ASSERT_EQ(report.guard.size(), 1U);
  EXPECT_EQ(report.guard[0].excess.kind, core::Excess::Kind::error);
  EXPECT_NEAR(report.guard[0].excess.value, 0.99, 1e-3) << "control words hold fewer digits";
  EXPECT_NEAR(report.guard[0].excess.allowed, 0.9, 1e-3);
  EXPECT_THAT(report.guard[0].codecs, ElementsAre("topk:0.01"));
  EXPECT_THAT(report.guard[0].tensors, testing::Not(IsEmpty()));
  const auto has = [&](What what) {
    return std::ranges::find(report.events, what, &Decision::what) != report.events.end();
  };
  EXPECT_TRUE(has(What::repair));
  EXPECT_TRUE(has(What::drift) || has(What::link));
  EXPECT_GT(report.tests.size(), 1U);
  const std::string page = to_html(report, "changes");
  EXPECT_THAT(page, HasSubstr("topk:0.01</bdi> for these tensors"));
  EXPECT_THAT(page, HasSubstr("Until the first decision")) << "which is a small part of all steps";
  EXPECT_THAT(to_html(report_of(golden("half_1gbit")), "short"), testing::Not(HasSubstr("Until the first decision")));
}

// The text up to this many lines behind the one with that decision.
std::string up_to(const std::string& text, What what, int more) {
  const std::vector<std::string> lines = lines_of(text);
  const std::string decision = "\"what\":\"" + std::string(to_string(what)) + "\"";
  const auto at =
      std::ranges::find_if(lines, [&](const std::string& line) { return line.find(decision) != std::string::npos; });
  EXPECT_NE(at, lines.end()) << decision;
  std::string cut;
  for (auto line = lines.begin(); line != at + more; ++line) cut += *line;
  return cut;
}

// A killed job: its report has everything that the job had printed by then, in the same words.
TEST(Report, OfAJobThatWasKilledTellsWhatTheJobHadTold) {
  const std::string text = reference_journal(600, -1, 500).text;
  const struct {
    What after;
    int more;
    State state;
    std::string headline, words;
  } kCases[] = {
      {What::confirm, 20, State::undecided, "The job is being tuned.", "nothing is confirmed yet, "},
      {What::commit, 20, State::committed, "less time a step", "committed "},
      {What::repair, 20, State::dropped, "the baseline runs instead.", "runs instead while "},
  };
  for (const auto& [after, more, state, title, words] : kCases) {
    SCOPED_TRACE(to_string(after));
    const std::string cut = up_to(text, after, more);
    const Report report = report_of(cut);
    EXPECT_EQ(report.standing.state, state);
    EXPECT_THAT(headline(report), HasSubstr(title));
    EXPECT_THAT(story(report), HasSubstr(words));
    EXPECT_EQ(story(report), in_words(report.standing));
    EXPECT_THAT(summary(report), HasSubstr(story(report)));
    // The words stay the same if the tuner decides otherwise: only the journal counts.
    std::string other = cut;
    const size_t seed = other.find("\"seed\":3");
    ASSERT_NE(seed, std::string::npos);
    other.replace(seed, 8, "\"seed\":4");
    const Report otherwise = report_of(other);
    if (after != What::confirm) {
      EXPECT_FALSE(otherwise.decides_the_same);
    }
    EXPECT_EQ(otherwise.standing, report.standing);
  }
}

TEST(Report, OfAConfirmationUnderWayCountsItsPairs) {
  const std::string text = golden("half_1gbit");
  const Report report = report_of(up_to(text, What::confirm, 45));
  ASSERT_EQ(report.tests.size(), 1U);
  const PairTest& test = report.tests[0];
  EXPECT_EQ(test.verdict, PairTest::Verdict::open);
  EXPECT_EQ(test.begin, 134);
  EXPECT_EQ(test.end, report.steps.back().step) << "not the step of the last decision";
  EXPECT_GT(test.pairs_ms.size(), 2U);
  const std::string page = to_html(report, "j");
  EXPECT_THAT(page, HasSubstr(std::to_string(test.pairs_ms.size()) + " of 8 pairs: not finished."));
  EXPECT_THAT(page, testing::Not(HasSubstr("95 % interval -")));
}

TEST(Report, ShowsTheStepsOfWhatWasDroppedAsThoseOfAChoice) {
  const Report report = report_of(up_to(reference_journal(600, -1, 500).text, What::repair, 20));
  ASSERT_TRUE(report.standing.former);
  std::set<std::string> roles;
  for (const ReportStep& step : report.steps) {
    if (report.label(step.slot) == report.standing.former->label) roles.insert(role_of(report, step.slot));
  }
  EXPECT_THAT(roles, ElementsAre("former"));
  EXPECT_THAT(to_html(report, "j"), HasSubstr("what was chosen before"));
}

// A slow period would flatten the differences between strategies.
TEST(Report, ASlowSpellDoesNotStretchTheAxisOfSteps) {
  Report report = report_of(golden("half_1gbit"));
  for (size_t s = 300; s < 360; ++s) report.steps[s].ms = 50'000;
  EXPECT_THAT(steps_chart(report, 940), testing::Not(HasSubstr("50000<")));
  EXPECT_THAT(steps_chart(report, 940), HasSubstr("beyond"));
}

TEST(Report, SaysWhatCarriedGradients) {
  using testing::Contains, testing::Pair;
  Report report = report_of(golden("half_1gbit"));
  EXPECT_THAT(configuration(report), Contains(Pair("gradients go over", "not told")));
  report.transport = "nccl (its reason)";
  EXPECT_THAT(configuration(report), Contains(Pair("gradients go over", "nccl (its reason)")));
}

TEST(Report, SaysFromWhichStepOnLossyStrategiesMayRun) {
  using testing::Pair;
  Report report = report_of(golden("lossy_200mbit"));
  report.job.codecs = {{"none", 0}, {"int8", 256}, {"int3packed", 256}};
  const auto configured = [&](core::OptimizerFamily optimizers, std::optional<int> lossy_after) {
    report.job.tuning.optimizers = optimizers;
    report.job.tuning.lossy_after = lossy_after;
    return configuration(report);
  };
  using Family = core::OptimizerFamily;
  const std::string name = "lossy strategies";
  EXPECT_THAT(configured(Family::sgd, {}), testing::Contains(Pair(name, "from step 0 on")));
  EXPECT_THAT(configured(Family::adaptive, 9), testing::Contains(Pair(name, "from step 9 on")));
  EXPECT_THAT(configured(Family::adaptive, {}),
              testing::Contains(Pair(name, "from step 0 on, with int3packed:256 from step 80 on")));
}

TEST(Report, OfManyBucketsIsASmallPageWithoutMarkupFromTheJob) {
  const Report pinned = report_of(many_buckets_journal(60, 0).text),
               tuned = report_of(many_buckets_journal(120, 400).text);
  EXPECT_EQ(pinned.standing.state, State::pinned);
  EXPECT_EQ(tuned.standing.state, State::undecided);
  EXPECT_TRUE(tuned.is_tuning);
  EXPECT_EQ(pinned.buckets.size(), 540U);
  EXPECT_EQ(std::ranges::count(pinned.buckets, core::Due::forward, &BucketRow::due), 60);
  EXPECT_EQ(std::ranges::count(pinned.buckets, true, &BucketRow::uses_host), 160);
  EXPECT_GT(pinned.pictures.chosen.measured.size(), 1000U);
  EXPECT_GT(pinned.pictures.chosen.predicted.size(), 1000U);
  for (const Report& report : {pinned, tuned}) {
    EXPECT_TRUE(report.decides_the_same);
    const std::string page = to_html(report, "<img src=x onerror=alert(1)>");
    EXPECT_LT(page.size(), kMostPageBytes);
    for (const std::string_view markup : {"<script", "<b onclick", "<img", "</script"}) {
      EXPECT_EQ(page.find(markup), std::string::npos) << markup;
    }
  }
}

}  // namespace
}  // namespace gradtune::tuner
