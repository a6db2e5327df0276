// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
#include "tuner/tuner.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "tests/tuner/simulated_job.h"
#include "tuner/confirm.h"

namespace gradtune::tuner {
namespace {

using Kind = Command::Kind;
using policies::Candidate;
using policies::Proposal;
using testing::Contains;
using testing::ElementsAre;
using testing::Field;
using testing::IsEmpty;
using testing::Not;

const Candidate kBaseline = candidate("baseline", 0), kHalf = candidate("bf16 baseline", 1, "bf16");

std::vector<Candidate> arms(int n, const std::string& codec = "") {
  std::vector<Candidate> arms;
  for (int i = 0; i < n; ++i) arms.push_back(candidate("arm" + std::to_string(i), 10 + i, codec));
  return arms;
}

std::map<std::string, double> times(double baseline, const std::vector<double>& arms_ms) {
  std::map<std::string, double> ms = {{"baseline", baseline}};
  for (size_t i = 0; i < arms_ms.size(); ++i) ms["arm" + std::to_string(i)] = arms_ms[i];
  return ms;
}

// Arms that are measured first, then raced.
std::vector<Proposal> measured(const std::vector<Candidate>& arms) { return {{arms, false}, {arms, true}}; }

int steps_of(const SimulatedJob& job, const std::string& label) {
  const auto has_label = [&](const SimulatedJob::Step& step) { return step.label == label; };
  return static_cast<int>(std::count_if(job.steps.begin(), job.steps.end(), has_label));
}

bool ends_with_baseline(const SimulatedJob& job, const std::string& why) {
  return !job.tuner->outcome().committed && job.label_in_force() == "baseline" &&
         job.decided(What::keep_baseline) == std::vector<std::string>{why};
}

TEST(Tuner, CommitsTheFastestAndClaimsWhatWasConfirmed) {
  SimulatedJob job({}, times(100, {85, 80, 90, 95}), measured(arms(4)), {kBaseline});
  job.run(20);
  const Outcome& outcome = job.tuner->outcome();
  EXPECT_TRUE(outcome.committed);
  EXPECT_EQ("arm1", outcome.label);
  EXPECT_EQ("arm1", job.label_in_force());
  EXPECT_EQ("arm1", job.tuner->in_force().label);
  EXPECT_NEAR(100, outcome.baseline_ms, 1e-9);
  EXPECT_NEAR(80, outcome.committed_ms, 1e-9);
  EXPECT_NEAR(0.2, outcome.gain, 1e-12);
  EXPECT_NEAR(0.2, outcome.gain_low, 1e-12);
  EXPECT_NEAR(0.2, outcome.gain_high, 1e-12);
  EXPECT_EQ(6, outcome.pairs);
  EXPECT_LE(outcome.steps, 145);
  EXPECT_EQ(1.0, job.tuner->progress());
}

// The first block of the faster baseline falls into a burst of load. So the other one looks faster, and a strategy
// as fast as the first looks like a gain.
TEST(Tuner, WhatIsOnlyFasterThanTheSlowerBaselineIsNotCommitted) {
  JobOptions options;
  options.factor = [](int64_t step, const std::string&) { return step >= 7 && step < 11 ? 3.0 : 1.0; };
  std::map<std::string, double> ms = times(130, {100, 101});
  ms["first"] = 100;
  SimulatedJob job(options, ms, measured(arms(2)), {candidate("first", 1), kBaseline});
  job.run(20);
  EXPECT_FALSE(job.tuner->outcome().committed);
  EXPECT_THAT(job.decided(What::baseline), ElementsAre("baseline", "first"));
  EXPECT_THAT(job.decided(What::not_confirmed), ElementsAre("arm0"));
  EXPECT_EQ("first", job.label_in_force()) << "the faster baseline stays";
  EXPECT_NEAR(100, job.tuner->outcome().baseline_ms, 1e-9);

  ms["arm0"] = 80;
  SimulatedJob faster(options, ms, measured(arms(2)), {candidate("first", 1), kBaseline});
  faster.run(20);
  EXPECT_EQ("arm0", faster.label_in_force());
  EXPECT_NEAR(0.2, faster.tuner->outcome().gain, 1e-12) << "against the faster baseline";
}

TEST(Tuner, TheJournalTellsTheBoundsOfEveryConfirmation) {
  int committed = 0, kept = 0;
  for (uint64_t seed = 0; seed < 40; ++seed) {
    JobOptions options;
    options.seed = seed;
    options.noise = {.cv = 0.05};
    SimulatedJob job(options, times(100, {97}), measured(arms(1)), {kBaseline});
    job.run(20);
    if (job.decided(What::confirm).empty()) continue;
    std::map<What, double> values;
    for (const Decision& decision : job.decisions) values[decision.what] = decision.value;
    EXPECT_LT(values.at(What::gain_at_least), values.at(What::gain_at_most));
    EXPECT_LT(values.at(What::gain_at_least), 0.08);
    EXPECT_GT(values.at(What::gain_at_most), -0.02);
    const Outcome& outcome = job.tuner->outcome();
    EXPECT_EQ(outcome.committed, values.at(What::gain_at_least) > 0) << "the bound that is told decides";
    EXPECT_EQ(outcome.gain_low, outcome.committed ? values.at(What::gain_at_least) : 0);
    EXPECT_EQ(outcome.gain_high, outcome.committed ? values.at(What::gain_at_most) : 0);
    ++(outcome.committed ? committed : kept);
  }
  EXPECT_GT(committed, 5);
  EXPECT_GT(kept, 5);
}

TEST(Tuner, WhatIsTriedIsNotChosen) {
  SimulatedJob job({}, times(100, {85, 80, 90}), measured(arms(3)), {kBaseline});
  while (job.tuner->stage() != Stage::watch) {
    EXPECT_EQ("baseline", job.tuner->chosen().label);
    job.one_step();
  }
  EXPECT_EQ("arm1", job.tuner->chosen().label);

  const std::vector<Candidate> two = arms(2);
  SimulatedJob imported({}, times(100, {95, 80}), measured({two[1]}), {kBaseline}, candidate("arm0", 10, "bf16"));
  while (imported.tuner->stage() != Stage::watch) {
    const bool is_dropped = !imported.decided(What::drop_imported).empty();
    EXPECT_EQ(is_dropped ? "baseline" : "arm0", imported.tuner->chosen().label);
    imported.one_step();
  }
  EXPECT_EQ("arm0", imported.tuner->chosen().label);
}

TEST(Tuner, GoesThroughItsStages) {
  SimulatedJob job({}, times(100, {85, 80}), measured(arms(2)), {kBaseline});
  std::vector<Stage> stages;
  while (job.tuner->stage() != Stage::watch) {
    job.one_step();
    if (stages.empty() || stages.back() != job.tuner->stage()) stages.push_back(job.tuner->stage());
    EXPECT_GE(job.tuner->progress(), 0);
    EXPECT_LE(job.tuner->progress(), 1);
  }
  EXPECT_THAT(stages, ElementsAre(Stage::observe, Stage::partition, Stage::race, Stage::confirm, Stage::watch));
}

TEST(Tuner, TellsThePolicyWhatItMeasured) {
  SimulatedJob job({}, times(100, {85, 80}), measured(arms(2)), {kBaseline});
  job.run();
  const auto hash = [](int i) { return core::hash(arms(2)[static_cast<size_t>(i)].strategy); };
  EXPECT_THAT(job.learned, ElementsAre(core::Measurement{hash(0), 85, 3}, core::Measurement{hash(1), 80, 3}));
}

TEST(Tuner, MeasuringACandidateTakesFourStepsInAProposalAndSevenAlone) {
  const std::vector<Candidate> six = arms(6);
  const auto steps = [&](const std::vector<Proposal>& script) {
    SimulatedJob job({}, times(100, {200, 201, 202, 203, 204, 205}), script, {kBaseline});
    job.run();
    return job.steps.size();
  };
  const std::vector<Candidate> five(six.begin(), six.end() - 1);
  EXPECT_EQ(4, steps({{six, false}}) - steps({{five, false}}));
  EXPECT_EQ(7, steps({{five, false}, {{six[5]}, false}}) - steps({{five, false}}));
}

TEST(Tuner, TheFasterBaselineIsWhatAGainIsMeasuredAgainst) {
  auto ms = times(365, {190});
  ms["bf16 baseline"] = 230;
  SimulatedJob job({}, ms, measured(arms(1)), {kBaseline, kHalf});
  job.run();
  EXPECT_THAT(job.decided(What::baseline), ElementsAre("bf16 baseline"));
  EXPECT_NEAR(1 - 190.0 / 230, job.tuner->outcome().gain, 1e-12);
  EXPECT_LE(steps_of(job, "baseline"), 10);
}

TEST(Tuner, WithNothingToGainTheBaselineStays) {
  SimulatedJob job({}, times(100, {100, 103, 99.5, 120}), measured(arms(4)), {kBaseline});
  job.run(20);
  EXPECT_TRUE(ends_with_baseline(job, "nothing looks faster"));
  EXPECT_EQ(100, job.tuner->outcome().baseline_ms);
  EXPECT_EQ(0, job.tuner->outcome().committed_ms);
  EXPECT_EQ(0, job.tuner->outcome().gain);
  EXPECT_LE(job.tuner->outcome().steps, 110);
  EXPECT_THAT(job.held, ElementsAre(0)) << "all else was dropped";
}

TEST(Tuner, WithNothingProposedItEndsAtOnce) {
  SimulatedJob job({}, times(100, {}), {{{}, true}}, {kBaseline});
  job.run();
  EXPECT_TRUE(ends_with_baseline(job, "nothing looks faster"));
  EXPECT_LE(job.tuner->outcome().steps, 10);
}

TEST(Tuner, ABaselineAmongTheFinalistsIsNoCandidate) {
  SimulatedJob job({}, times(100, {}), {{{kBaseline}, false}, {{kBaseline}, true}}, {kBaseline});
  job.run();
  EXPECT_TRUE(ends_with_baseline(job, "nothing looks faster"));
}

TEST(Tuner, AMuchSlowerBaselineRunsInShortBlocks) {
  SimulatedJob job({}, times(800, {100, 110}), measured(arms(2)), {kBaseline});
  job.run();
  int longest = 0, run = 0;
  for (const auto& step : job.steps) {
    run = step.label == "baseline" && step.step > 20 ? run + 1 : 0;
    longest = std::max(longest, run);
  }
  EXPECT_TRUE(job.tuner->outcome().committed);
  EXPECT_LE(longest, 6) << "three steps, and six where two blocks meet";
}

TEST(Tuner, ASlowCandidateIsCutShortAndNotRaced) {
  SimulatedJob job({}, times(100, {80, 1000, 210}), measured(arms(3)), {kBaseline});
  job.run();
  EXPECT_EQ(4, steps_of(job, "arm1")) << "its first step holds the preparation of the next, and says nothing";
  EXPECT_EQ(4, steps_of(job, "arm2"));
  EXPECT_THAT(job.decided(What::eliminate), ElementsAre("arm1", "arm2"));
  EXPECT_EQ("arm0", job.label_in_force());
}

TEST(Tuner, ASlowFinalistIsOutAfterARound) {
  SimulatedJob job({}, times(100, {80, 1000, 170}), {{arms(3), true}}, {kBaseline});
  job.run();
  EXPECT_EQ(3, steps_of(job, "arm1")) << "no command comes into force sooner";
  EXPECT_LE(steps_of(job, "arm2"), 5);
  EXPECT_EQ("arm0", job.label_in_force());
}

TEST(Tuner, WhatIsExcludedOrNotFiniteIsNeverScored) {
  const auto is_bad = [](int64_t step) { return step % 7 == 3; };
  for (const bool excluded : {true, false}) {
    JobOptions options;
    if (excluded) options.excluded = is_bad;
    if (!excluded) options.nonfinite = [&](int64_t step, const std::string&) { return is_bad(step); };
    options.factor = [&](int64_t step, const std::string&) { return is_bad(step) ? 0.01 : 1.0; };
    SimulatedJob job(options, times(100, {85, 80, 90}), measured(arms(3)), {kBaseline});
    job.run();
    EXPECT_TRUE(job.tuner->outcome().committed);
    EXPECT_NEAR(0.2, job.tuner->outcome().gain, 1e-12);
    EXPECT_LE(job.tuner->outcome().steps, 150);
    for (const core::Measurement& measurement : job.learned) EXPECT_GE(measurement.step_ms, 80);
  }
}

TEST(Tuner, ThePreparationCostsNoScoredStep) {
  JobOptions options;
  options.preparing_ms = 1000;
  SimulatedJob job(options, times(100, {85, 80, 90}), measured(arms(3)), {kBaseline});
  job.run();
  EXPECT_NEAR(0.2, job.tuner->outcome().gain, 1e-12);
  EXPECT_THAT(job.learned, testing::Each(testing::Field(&core::Measurement::steps, 3)));
  EXPECT_GE(job.tuner->outcome().cost_ms, 2900) << "but it counts as a cost";
}

TEST(Tuner, WhatCanNotBePreparedIsLeftOut) {
  for (const int preparing_steps : {1, 3}) {
    JobOptions options;
    options.failing = {"arm1", "arm3"};
    options.preparing_steps = preparing_steps;
    SimulatedJob job(options, times(100, {85, 1, 90, 1}), measured(arms(4)), {kBaseline});
    job.run(20);
    EXPECT_EQ("arm0", job.label_in_force());
    EXPECT_EQ(2, job.learned.size());
    EXPECT_THAT(job.decided(What::prepare_failed), ElementsAre("arm1", "arm3", "arm1", "arm3"));
    EXPECT_EQ(2, job.held.size()) << "baseline and winner";
  }
}

TEST(Tuner, WhyNothingCouldBePreparedIsWhyTheBaselineStays) {
  JobOptions options;
  options.failing = {"arm0", "arm1"};
  options.failure = "1,123,677 bytes; at most 1,048,576 are read";
  SimulatedJob none(options, times(100, {85, 80}), measured(arms(2)), {kBaseline});
  none.run(20);
  EXPECT_THAT(none.decided(What::prepare_failed), testing::Contains("arm0: " + options.failure));
  EXPECT_TRUE(ends_with_baseline(none, "no candidate could be prepared: " + options.failure));
  SimulatedJob slower(options, times(100, {85, 80, 120}), measured(arms(3)), {kBaseline});
  slower.run(20);
  EXPECT_TRUE(
      ends_with_baseline(slower, "nothing that could be prepared looks faster; what could not: " + options.failure));
}

TEST(Tuner, WhatIsNeverPreparedIsGivenUp) {
  JobOptions options;
  options.preparing_steps = 100;
  SimulatedJob job(options, times(100, {85, 80}), {{arms(2), true}}, {kBaseline});
  job.run(20);
  EXPECT_TRUE(ends_with_baseline(job, "nothing looks faster"));
  EXPECT_LE(job.tuner->outcome().steps, 30);
  EXPECT_THAT(job.held, ElementsAre(0));
}

TEST(Tuner, ACandidateThatIsNeverFiniteIsLeftOut) {
  JobOptions options;
  options.nonfinite = [](int64_t, const std::string& label) { return label == "arm0"; };
  SimulatedJob job(options, times(100, {50, 80}), measured(arms(2)), {kBaseline});
  job.run();
  EXPECT_EQ("arm1", job.label_in_force());
  EXPECT_EQ(1, job.learned.size());
}

TEST(Tuner, SlotsAreDroppedInTime) {
  const std::vector<Candidate> many = arms(20);
  std::vector<double> ms;
  for (int i = 0; i < 20; ++i) ms.push_back(80 + i);
  std::vector<Proposal> script;
  for (const Candidate& arm : many) script.push_back({{arm}, false});
  script.push_back({std::vector<Candidate>(many.begin(), many.begin() + 7), true});
  SimulatedJob job({}, times(100, ms), script, {kBaseline});
  job.run(20);
  EXPECT_EQ("arm0", job.label_in_force());
  EXPECT_LE(job.most_held, 1 + 7 + 2) << "baseline, possible finalists, the one that runs and the one that is prepared";
  EXPECT_EQ(2, job.held.size());
}

// --- lossy and imported strategies -----------------------------------------------------------------------------------

TEST(Tuner, NothingLossyRunsBeforeItsTime) {
  JobOptions options;
  options.tuner.lossy_after = 1000;
  options.tuner.budget_steps = 300;
  std::vector<Candidate> candidates = {candidate("arm0", 10, "bf16"), candidate("arm1", 11, "topk")};
  SimulatedJob job(options, times(100, {90, 70}), measured(candidates), {kBaseline});
  job.run(1500);
  EXPECT_EQ("arm1", job.label_in_force());
  for (const auto& step : job.steps) {
    EXPECT_FALSE(step.label == "arm1" && step.step < 1000);
    EXPECT_FALSE(step.label == "baseline" && step.step > 150 && step.step < 1000) << "the others are tuned meanwhile";
  }
  EXPECT_EQ(job.decided(What::commit), (std::vector<std::string>{"arm0", "arm1"}));
  EXPECT_THAT(job.decisions,
              Contains(testing::AllOf(Field(&Decision::what, What::more_may_run), Field(&Decision::value, 1000))));
  EXPECT_LT(job.tuner->outcome().steps, 300) << "two tunings";
}

// Proposes a strategy for each compressor that it knows, and notes which these were.
class PolicyOfCodecs final : public policies::Policy {
 public:
  explicit PolicyOfCodecs(std::vector<std::set<std::string>>& searches) : searches_(searches) {
    searches_.emplace_back();
  }

  std::string_view name() const override { return "codecs"; }
  Proposal propose(const policies::Knowledge& knowledge) override {
    for (const core::CompressorSpec& codec : knowledge.codecs) searches_.back().insert(codec.name);
    if (is_asked_) return {.candidates = proposed_, .final = true};
    is_asked_ = true;
    for (const core::CompressorSpec& codec : knowledge.codecs) {
      if (codec.name != "none") proposed_.push_back(candidate(codec.name, 10, codec.name));
    }
    return {.candidates = proposed_, .final = proposed_.empty()};
  }
  void learn(const core::Measurement&) override {}

 private:
  std::vector<std::set<std::string>>& searches_;
  std::vector<Candidate> proposed_;
  bool is_asked_ = false;
};

TEST(Tuner, ASearchIsToldOfCompressorsThatMayRunSoonAndAnotherOneOfTheRest) {
  using Searches = std::vector<std::set<std::string>>;
  const std::set<std::string> exact = {"none"}, half = {"none", "bf16"}, all = {"none", "bf16", "topk"};
  struct Case {
    std::vector<std::string> codecs;
    int lossy_after;
    Searches searches;
    bool retune = true;
  };
  for (const Case& each :
       {Case{{"none", "bf16", "topk"}, 0, {all}}, Case{{"none", "bf16", "topk"}, 90, {all}},
        Case{{"none", "bf16", "topk"}, 600, {half, all}}, Case{{"none", "bf16", "topk"}, 600, {half, all}, false},
        Case{{"none", "topk"}, 600, {exact, {"none", "topk"}}}, Case{{"none", "bf16"}, 600, {half}}}) {
    SCOPED_TRACE(each.lossy_after);
    Searches searches;
    JobOptions options;
    options.tuner.lossy_after = each.lossy_after;
    options.tuner.retune = each.retune;
    for (const std::string& name : each.codecs) options.knowledge.codecs.push_back({.name = name});
    options.make_policy = [&] { return std::make_unique<PolicyOfCodecs>(searches); };
    SimulatedJob job(options, {{"baseline", 100}, {"bf16", 80}, {"topk", 60}}, {}, {kBaseline});
    while (job.steps.size() < 800) job.one_step();
    while (!searches.empty() && searches.back().empty()) searches.pop_back();  // created, and not asked yet
    EXPECT_EQ(searches, each.searches);
    EXPECT_EQ(job.label_in_force(), each.codecs.back());
    for (const auto& step : job.steps) EXPECT_FALSE(step.label == "topk" && step.step < each.lossy_after);
  }
}

TEST(Tuner, WhatHasToWaitHoldsBackNothingElse) {
  JobOptions options;
  options.tuner.optimizers = core::OptimizerFamily::adaptive;
  const std::vector<Candidate> both = {candidate("arm0", 10, "powersgd"), candidate("arm1", 11, "topk")};
  SimulatedJob job(options, times(100, {70, 90}), {{both, false}, {both, true}}, {kBaseline});
  job.run();
  EXPECT_EQ("arm0", job.label_in_force());
  EXPECT_EQ(job.decided(What::measure), (std::vector<std::string>{"arm1", "arm0"}));
  EXPECT_EQ(job.decided(What::commit), std::vector<std::string>{"arm0"});
}

TEST(Tuner, WhatNeedsDenseStepsFirstIsTriedAfterThemAndOthersBefore) {
  JobOptions options;
  options.tuner.optimizers = core::OptimizerFamily::adaptive;
  const std::vector<Candidate> candidates = {candidate("arm0", 10, "topk"), candidate("arm1", 11, "powersgd")};
  SimulatedJob job(options, times(100, {90, 70}), measured(candidates), {kBaseline});
  job.run();
  EXPECT_EQ("arm1", job.label_in_force());
  const auto first_of = [&](const char* label) {
    return std::ranges::find(job.steps, label, [](const auto& step) { return step.label; })->step;
  };
  EXPECT_LT(first_of("arm0"), 40);
  EXPECT_GE(first_of("arm1"), 80);
}

TEST(Tuner, AnImportedStrategyRunsFromTheFirstStepAndIsConfirmed) {
  SimulatedJob job({}, times(100, {80}), {}, {kBaseline}, arms(1)[0]);
  EXPECT_EQ(Stage::imported, job.tuner->stage());
  EXPECT_EQ("arm0", job.tuner->in_force().label);
  job.run(20);
  for (size_t step = 0; step < 20; ++step) EXPECT_EQ("arm0", job.steps[step].label) << step;
  EXPECT_TRUE(job.tuner->outcome().committed);
  EXPECT_EQ("arm0", job.label_in_force());
  EXPECT_NEAR(0.2, job.tuner->outcome().gain, 1e-12);
  EXPECT_LE(job.tuner->outcome().steps, 105);
  EXPECT_THAT(job.decisions, Not(Contains(testing::Field(&Decision::stage, Stage::race))));
}

TEST(Tuner, AnImportedStrategyThatDoesNotHoldIsDroppedAndTuningBegins) {
  const std::vector<Candidate> two = arms(2);
  for (const double ms : {95.0, 100.0, 150.0, 500.0}) {
    JobOptions options;
    if (ms == 95) options.nonfinite = [](int64_t, const std::string& label) { return label == "arm0"; };
    SimulatedJob job(options, times(100, {ms, 80}), measured({two[1]}), {kBaseline}, two[0]);
    job.run(20);
    EXPECT_EQ(1, job.decided(What::drop_imported).size());
    EXPECT_EQ("arm1", job.label_in_force());
    EXPECT_THAT(job.held, Not(Contains(kImportedSlot)));
  }
}

TEST(Tuner, ALossyImportedStrategyWaits) {
  JobOptions options;
  options.tuner.lossy_after = 500;
  SimulatedJob job(options, times(100, {80}), {}, {kBaseline}, candidate("arm0", 10, "topk"));
  job.run();
  for (const auto& step : job.steps) EXPECT_FALSE(step.label == "arm0" && step.step < 500);
  EXPECT_EQ("arm0", job.label_in_force());
  EXPECT_LE(job.tuner->outcome().steps, 105);
}

TEST(Tuner, AStrategyWaitsAsLongAsItsCompressorsNeedWithSuchOptimizers) {
  struct Case {
    core::OptimizerFamily optimizers;
    const char* codec;
    std::optional<int> lossy_after;
    int first;
  };
  using Family = core::OptimizerFamily;
  for (const Case& each : {Case{Family::adaptive, "powersgd", {}, 80}, Case{Family::adaptive, "topk", {}, 0},
                           Case{Family::sgd, "powersgd", {}, 0}, Case{Family::adaptive, "powersgd", 0, 0},
                           Case{Family::adaptive, "topk", 30, 30}, Case{Family::adaptive, "bf16", 30, 0}}) {
    JobOptions options;
    options.tuner.lossy_after = each.lossy_after;
    options.tuner.optimizers = each.optimizers;
    options.tuner.budget_steps = 0;
    SimulatedJob job(options, times(100, {80}), {}, {kBaseline}, candidate("arm0", 10, each.codec));
    for (int step = 0; step < 100; ++step) job.one_step();
    const auto first = std::ranges::find(job.steps, "arm0", [](const auto& step) { return step.label; });
    ASSERT_NE(first, job.steps.end());
    EXPECT_EQ(first->step, each.first) << each.codec;
  }
}

TEST(Tuner, APinnedStrategyIsInForceFromTheFirstStepOrOnceItMayBe) {
  for (const int lossy_after : {0, 50}) {
    JobOptions options;
    options.tuner.lossy_after = lossy_after;
    options.tuner.budget_steps = 0;
    SimulatedJob job(options, times(100, {80}), {}, {kBaseline}, candidate("arm0", 10, "topk"));
    for (int step = 0; step < 100; ++step) job.one_step();
    for (const auto& step : job.steps)
      EXPECT_EQ(step.label, step.step < lossy_after ? "baseline" : "arm0") << step.step;
    EXPECT_EQ(job.tuner->in_force().label, "arm0");
    EXPECT_EQ(job.tuner->outcome().label, "arm0");
    EXPECT_EQ(job.epoch(), lossy_after > 0 ? 2 : 1) << "said once";
  }
}

// --- budget ----------------------------------------------------------------------------------------------------------

TEST(Tuner, WhenTheStepsAreSpentTheBaselineStays) {
  for (const int budget_steps : {1, 5, 20, 50, 70, 80, 90}) {
    JobOptions options;
    options.tuner.budget_steps = budget_steps;
    SimulatedJob job(options, times(100, {85, 80, 90}), measured(arms(3)), {kBaseline});
    job.run(20);
    EXPECT_FALSE(job.tuner->outcome().committed);
    EXPECT_EQ("baseline", job.label_in_force());
    EXPECT_LE(job.tuner->outcome().steps, budget_steps);
    EXPECT_THAT(job.held, ElementsAre(0));
  }
}

TEST(Tuner, AShortBudgetConfirmsAfterFewerRoundsAndWithFewerPairs) {
  const auto steps_with = [](int budget_steps) {
    JobOptions options;
    options.tuner.budget_steps = budget_steps;
    SimulatedJob job(options, times(100, {85, 80, 90}), measured(arms(3)), {kBaseline});
    job.run(20);
    EXPECT_EQ("arm1", job.label_in_force()) << budget_steps;
    EXPECT_LE(job.tuner->outcome().steps, budget_steps);
    EXPECT_GE(job.tuner->outcome().pairs, fewest_pairs(allowed_error(0), 1));
    return job.tuner->outcome().steps;
  };
  const int usual = steps_with(1000);
  for (int budget_steps = 110; budget_steps <= usual; ++budget_steps) steps_with(budget_steps);
}

TEST(Tuner, WhenTheTimeIsSpentTheBaselineStays) {
  SimulatedJob job({}, times(100, {1000, 1100, 1200, 1300, 1400}), measured(arms(5)), {kBaseline});
  job.run(20);
  EXPECT_TRUE(ends_with_baseline(job, "the budget is spent"));
  EXPECT_LE(job.tuner->outcome().cost_ms, 0.25 * 200 * 100 + 3 * 1300)
      << "a quarter of 200 steps, and what was on its way";
}

// An unannounced evaluation, at any place.
TEST(Tuner, OneLongStepDoesNotEndTuning) {
  for (const int64_t at : {1, 5, 12, 20, 40, 60}) {
    JobOptions options;
    options.factor = [at](int64_t step, const std::string&) { return step == at ? 1000 : 1; };
    SimulatedJob job(options, times(100, {85, 80, 90}), measured(arms(3)), {kBaseline});
    job.run();
    EXPECT_EQ("arm1", job.label_in_force()) << at;
  }
}

TEST(Tuner, AnUnconfirmedImportedStrategyDoesNotOutliveTheBudget) {
  JobOptions options;
  options.tuner.budget_steps = 30;
  SimulatedJob job(options, times(100, {80}), {}, {kBaseline}, arms(1)[0]);
  job.run(20);
  EXPECT_TRUE(ends_with_baseline(job, "the budget leaves no room to confirm"));
}

// --- determinism -----------------------------------------------------------------------------------------------------

TEST(Tuner, SameReportsGiveTheSameCommands) {
  JobOptions options;
  options.noise = kReference;
  const auto ms = times(100, {85, 80, 90, 82, 110});
  SimulatedJob job(options, ms, measured(arms(5)), {kBaseline});
  job.run(20);

  policies::Knowledge knowledge;
  knowledge.ranks.size = options.ranks;
  knowledge.traits = traits();
  TunerOptions tuner_options;
  tuner_options.seed = options.seed;
  const auto make_policy = [] { return std::make_unique<ScriptedPolicy>(measured(arms(5))); };
  Tuner replay(tuner_options, make_policy, knowledge, {kBaseline}, {});
  for (const auto& step : job.steps)
    ASSERT_EQ(step.answer, replay.on_step(step.report).command) << "step " << step.step;
  EXPECT_EQ(job.tuner->outcome().gain, replay.outcome().gain);

  SimulatedJob again(options, ms, measured(arms(5)), {kBaseline});
  again.run(20);
  EXPECT_EQ(job.steps, again.steps);
}

TEST(Tuner, AnotherSeedShufflesOtherwise) {
  const auto steps = [](uint64_t seed) {
    JobOptions options;
    options.seed = seed;
    SimulatedJob job(options, times(100, {85, 80, 90}), measured(arms(3)), {kBaseline});
    job.run();
    return job.steps;
  };
  EXPECT_NE(steps(1), steps(2));
}

}  // namespace
}  // namespace gradtune::tuner
