// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
#include "tuner/progress.h"

#include <gtest/gtest.h>

#include <cmath>

#include "tuner/decision_words.h"

namespace gradtune::tuner {
namespace {

using core::Fidelity;

class SetClock final : public core::Clock {
 public:
  int64_t now_ns() const override { return now_ms * 1'000'000; }
  int64_t now_ms = 1000;
};

using State = Standing::State;
using What = Decision::What;

Standing committed() {
  return {.state = State::committed,
          .label = "topk:0.01 gather, 3 buckets",
          .baseline = "bf16 all_reduce baseline",
          .comparison = {.baseline_ms = 228.1, .committed_ms = 104.3, .gain = 0.5427, .gain_low = 0.531},
          .tuning_steps = 210,
          .tuning_cost_ms = 1900};
}

TEST(ProgressLines, TheFirstNamesFidelityAndCompressors) {
  EXPECT_EQ(start_line(Fidelity::half, {{"none"}, {"bf16"}}, "auto", "nccl (its reason)"),
            "gradtune: fidelity half (16 bits on the wire, nothing else lossy), compressors none, "
            "bf16, policy auto, gradients over nccl (its reason)");
  EXPECT_EQ(start_line(Fidelity::lossy, {{"topk", 0.01}}, "mergecomp", ""),
            "gradtune: fidelity lossy (compressors that lose, with error feedback), compressors "
            "topk:0.01, policy mergecomp");
  EXPECT_EQ(start_line(Fidelity::exact, {}, "fixed", ""),
            "gradtune: fidelity exact (fp32 sums, nothing lossy), compressors none, policy fixed");
}

TEST(ProgressLines, TheLastNamesTheConfirmedGainAndTheBoundThatDecided) {
  EXPECT_EQ(final_line(committed(), Stage::watch),
            "gradtune: committed topk:0.01 gather, 3 buckets: 228.1 -> 104.3 ms a step, gain 54.3 % (at least 53.1 % "
            "with 96 % confidence), baseline bf16 all_reduce; tuning took 210 steps and cost 1.90 s (0.42 % of 2000 "
            "baseline steps)");
}

TEST(ProgressLines, TheLastSaysWhyTheBaselineStays) {
  const Standing standing{.state = State::baseline,
                          .label = "all_reduce baseline",
                          .baseline = "all_reduce baseline",
                          .comparison = {.baseline_ms = 12.34},
                          .why = "no gain was confirmed",
                          .tuning_steps = 80};
  EXPECT_EQ(final_line(standing, Stage::watch),
            "gradtune: the baseline stays, all_reduce at 12.3 ms a step: no gain was confirmed; tuning took 80 steps "
            "and cost 0.0 s (0 % of 2000 baseline steps)");
}

TEST(ProgressLines, TheLastSaysWhatWasUnderWay) {
  EXPECT_EQ(final_line({.label = "bf16 all_reduce baseline"}, Stage::race),
            "gradtune: nothing is confirmed yet, bf16 all_reduce runs; tuning ended while racing the best");
  EXPECT_EQ(final_line({.state = State::pinned, .label = "bf16 all_reduce, 8 buckets"}, Stage::observe),
            "gradtune: bf16 all_reduce, 8 buckets is pinned, and nothing is tuned");
}

// Each decision or finding gives a line at once, in the words of the last line.
TEST(ProgressLines, OfAStepSayWhatIsDecidedInIt) {
  const auto lines = [](const std::vector<What>& kinds, double value = 0.5) {
    std::vector<Decision> decisions;
    for (const What what : kinds) {
      decisions.push_back(
          {.step = 900, .stage = Stage::watch, .what = what, .label = "bf16 all_reduce", .value = value});
    }
    return lines_of(decisions, committed());
  };
  using Lines = std::vector<std::string>;
  EXPECT_EQ(lines({What::drift}, std::log(1.25)), Lines{"gradtune: step 900: steps take 25 % longer than before"});
  EXPECT_EQ(lines({What::link}, std::log(0.8)), Lines{"gradtune: step 900: collectives take 20 % less than before"});
  EXPECT_EQ(lines({What::straggler}, 3),
            Lines{"gradtune: step 900: rank 3 computes longer than it did and holds up the others"});
  EXPECT_EQ(lines({What::more_may_run}, 900),
            Lines{"gradtune: step 900: from step 900 on compressors may run that had to wait: a new search begins"});
  EXPECT_EQ(lines({What::keep_committed}), Lines{"gradtune: step 900: bf16 all_reduce stays"});
  EXPECT_EQ(lines({What::measure}), Lines{});
  EXPECT_EQ(lines({}), Lines{});
  const Lines story{"gradtune: step 900: " + in_words(committed())};
  EXPECT_EQ(lines({What::gain_at_least, What::commit, What::tuning_steps}), story);
  EXPECT_EQ(lines({What::over_error_budget, What::give_up, What::repair}), story) << "one line tells all of it";
  EXPECT_EQ(lines({What::over_error_budget}).size(), 1U) << "of a strategy on trial";
  EXPECT_EQ(lines({What::audit, What::drop_committed}), story);
  EXPECT_EQ(lines({What::residual_runs_away, What::warn}), story);
}

TEST(ProgressLines, TheLiveOneClampsWhatItIsTold) {
  EXPECT_EQ(live_line(Stage::race, 0.456, 120, 104.26, "bf16 gather, 8 buckets"),
            "gradtune: step 120: racing the best, 46 %: 104.3 ms, bf16 gather, 8 buckets");
  EXPECT_EQ(live_line(Stage::observe, 7, 1, 1, "x"), "gradtune: step 1: observing the baseline, 100 %: 1.0 ms, x");
}

// The lines of a job's life, from a Progress.
std::string told(bool is_terminal, int64_t ms_per_step) {
  std::string text;
  SetClock clock;
  Progress progress([&](std::string_view more) { text += more; }, is_terminal, clock);
  progress.start(Fidelity::half, {{"none"}}, "auto", "gloo (why)");
  int64_t step = 0;
  for (const Stage stage : {Stage::observe, Stage::race, Stage::watch}) {
    for (int i = 0; i < 4; ++i, clock.now_ms += ms_per_step) progress.step(stage, i / 4.0, ++step, 50, "a");
    if (stage == Stage::race) progress.decided({{step, stage, What::commit, "a", 0.5}}, committed());
  }
  progress.finish(committed(), Stage::watch);
  return text;
}

TEST(Progress, ElsewhereThanOnATerminalThereIsALinePerStage) {
  EXPECT_EQ(told(false, 50), start_line(Fidelity::half, {{"none"}}, "auto", "gloo (why)") + "\n" +  //
                                 "gradtune: step 1: observing the baseline\n" +                     //
                                 "gradtune: step 5: racing the best\n" +                            //
                                 "gradtune: step 8: " + in_words(committed()) + "\n" +              //
                                 final_line(committed(), Stage::watch) + "\n");
}

TEST(Progress, OnATerminalTheLineOfAStageIsWrittenOverTenTimesASecondAtMost) {
  const auto live = [](Stage stage, int step, int i) {
    return "\r" + live_line(stage, i / 4.0, step, 50, "a") + "\x1b[K";
  };
  const auto line = [](const std::string& text) { return "\r" + text + "\x1b[K\n"; };
  EXPECT_EQ(told(true, 50),
            line(start_line(Fidelity::half, {{"none"}}, "auto", "gloo (why)")) +  //
                line(stage_line(Stage::observe, 1)) + live(Stage::observe, 1, 0) + live(Stage::observe, 3, 2) +
                line(stage_line(Stage::race, 5)) + live(Stage::race, 5, 0) + live(Stage::race, 7, 2) +
                line("gradtune: step 8: " + in_words(committed())) + line(final_line(committed(), Stage::watch)));
}

}  // namespace
}  // namespace gradtune::tuner
