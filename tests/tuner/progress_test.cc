// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
#include "tuner/progress.h"

#include <gtest/gtest.h>

#include <cmath>

namespace gradtune::tuner {
namespace {

using core::Fidelity;

class SetClock final : public core::Clock {
 public:
  int64_t now_ns() const override { return now_ms * 1'000'000; }
  int64_t now_ms = 1000;
};

Outcome committed() {
  Outcome outcome;
  outcome.committed = true;
  outcome.baseline_ms = 228.1;
  outcome.committed_ms = 104.3;
  outcome.gain = 0.5427;
  outcome.gain_low = 0.531;
  outcome.gain_high = 0.554;
  outcome.steps = 210;
  outcome.cost_ms = 1900;
  outcome.label = "topk:0.01 gather, 3 buckets";
  return outcome;
}

TEST(ProgressLines, TheFirstNamesFidelityAndCompressors) {
  EXPECT_EQ(start_line(Fidelity::half, {{"none"}, {"bf16"}}, "auto"),
            "gradtune: fidelity half (16 bits on the wire, nothing else lossy), compressors none, "
            "bf16, policy auto");
  EXPECT_EQ(start_line(Fidelity::lossy, {{"topk", 0.01}}, "mergecomp"),
            "gradtune: fidelity lossy (compressors that lose, with error feedback), compressors "
            "topk:0.01, policy mergecomp");
  EXPECT_EQ(start_line(Fidelity::exact, {}, "fixed"),
            "gradtune: fidelity exact (fp32 sums, nothing lossy), compressors none, policy fixed");
}

TEST(ProgressLines, TheLastNamesTheConfirmedGainAndItsInterval) {
  EXPECT_EQ(final_line(committed(), "bf16 all_reduce baseline", ""),
            "gradtune: committed topk:0.01 gather, 3 buckets: 228.1 -> 104.3 ms a step (gain 54.3 "
            "%, 95 % interval 53.1 to "
            "55.4 %), baseline bf16 all_reduce; tuning took 210 steps and cost 1.9 s (0.42 % of 2000 "
            "baseline steps)");
}

TEST(ProgressLines, TheLastSaysWhyTheBaselineStays) {
  Outcome outcome;
  outcome.baseline_ms = 12.34;
  outcome.steps = 80;
  outcome.label = "all_reduce baseline";
  EXPECT_EQ(final_line(outcome, "all_reduce baseline", "no candidate was confirmed to be faster"),
            "gradtune: the baseline stays, all_reduce at 12.3 ms a step: no candidate was "
            "confirmed to be faster; tuning took "
            "80 steps and cost 0.0 s (0 % of 2000 baseline steps)");
}

TEST(ProgressLines, TheLastSaysWhatWasInForceWhereNothingWasDecided) {
  EXPECT_EQ(
      unfinished_line(Stage::race, "bf16 all_reduce, 8 buckets"),
      "gradtune: training ended while racing the best; nothing was confirmed, bf16 all_reduce, 8 buckets was in force");
}

TEST(ProgressLines, OfADriftInWords) {
  using What = Decision::What;
  const auto line = [](What what, double value) {
    return change_line({.step = 900, .stage = Stage::watch, .what = what, .label = "bf16 all_reduce", .value = value});
  };
  EXPECT_EQ(line(What::drift, std::log(1.25)), "gradtune: step 900: steps take 25 % longer than before");
  EXPECT_EQ(line(What::link, std::log(0.8)), "gradtune: step 900: collectives take 20 % less than before");
  EXPECT_EQ(line(What::straggler, 3), "gradtune: step 900: rank 3 computes longer than it did and holds up the others");
  EXPECT_EQ(line(What::more_may_run, 900),
            "gradtune: step 900: from step 900 on compressors may run that had to wait: a new search begins");
  EXPECT_EQ(line(What::drop_committed, -0.1),
            "gradtune: step 900: bf16 all_reduce is not faster than the baseline any more and is dropped");
  EXPECT_EQ(line(What::keep_committed, 100), "gradtune: step 900: bf16 all_reduce stays");
  EXPECT_EQ(line(What::measure, 100), "");
}

TEST(ProgressLines, TheLiveOneClampsWhatItIsTold) {
  EXPECT_EQ(live_line(Stage::race, 0.456, 120, 104.26, "bf16 gather, 8 buckets"),
            "gradtune: step 120: racing the best, 46 %: 104.3 ms, bf16 gather, 8 buckets");
  EXPECT_EQ(live_line(Stage::observe, 7, 1, 1, "x"), "gradtune: step 1: observing the baseline, 100 %: 1.0 ms, x");
}

// A job's life, told to a Progress.
std::string told(bool is_terminal, int64_t ms_per_step) {
  std::string text;
  SetClock clock;
  Progress progress([&](std::string_view more) { text += more; }, is_terminal, clock);
  progress.start(Fidelity::half, {{"none"}}, "auto");
  int64_t step = 0;
  for (const Stage stage : {Stage::observe, Stage::race, Stage::watch}) {
    for (int i = 0; i < 4; ++i, clock.now_ms += ms_per_step) progress.step(stage, i / 4.0, ++step, 50, "a");
    if (stage == Stage::race) progress.finish(committed(), "all_reduce baseline", "");
  }
  return text;
}

TEST(Progress, ElsewhereThanOnATerminalThereIsALinePerStage) {
  EXPECT_EQ(told(false, 50), start_line(Fidelity::half, {{"none"}}, "auto") + "\n" +  //
                                 "gradtune: step 1: observing the baseline\n" +       //
                                 "gradtune: step 5: racing the best\n" +              //
                                 final_line(committed(), "all_reduce baseline", "") + "\n");
}

TEST(Progress, OnATerminalTheLineOfAStageIsWrittenOverTenTimesASecondAtMost) {
  const auto live = [](Stage stage, int step, int i) {
    return "\r" + live_line(stage, i / 4.0, step, 50, "a") + "\x1b[K";
  };
  const auto line = [](const std::string& text) { return "\r" + text + "\x1b[K\n"; };
  EXPECT_EQ(told(true, 50), line(start_line(Fidelity::half, {{"none"}}, "auto")) +  //
                                line(stage_line(Stage::observe, 1)) + live(Stage::observe, 1, 0) +
                                live(Stage::observe, 3, 2) + line(stage_line(Stage::race, 5)) +
                                live(Stage::race, 5, 0) + live(Stage::race, 7, 2) +
                                line(final_line(committed(), "all_reduce baseline", "")));
}

}  // namespace
}  // namespace gradtune::tuner
