// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
#include "tuner/report/contests.h"

#include <algorithm>
#include <cmath>
#include <set>
#include <utility>

#include "tuner/statistics.h"

namespace gradtune::tuner {
namespace {

using What = Decision::What;

// Blocks are asked for in rounds, or pairs, that have each slot once; so a new one begins when a slot repeats.
std::vector<std::vector<Score>> in_rounds(const std::vector<Score>& blocks) {
  std::vector<std::vector<Score>> rounds;
  std::set<int32_t> seen;
  for (const Score& block : blocks) {
    if (seen.empty() || !seen.insert(block.slot).second) {
      seen = {block.slot};
      rounds.emplace_back();
    }
    rounds.back().push_back(block);
  }
  return rounds;
}

std::vector<double> log_ratios(const RaceArm& arm, const RaceArm& baseline) {
  std::vector<double> logs;
  for (size_t round = 0; round < std::min(arm.blocks.size(), baseline.blocks.size()); ++round) {
    const auto &own = arm.blocks[round].step_ms, &other = baseline.blocks[round].step_ms;
    if (own && other && *own > 0 && *other > 0) logs.push_back(std::log(*own / *other));
  }
  return logs;
}

// All arms have the same noise, as they ran in the same rounds. So it is estimated from all of them.
void compare_with_baseline(std::vector<RaceArm>& arms) {
  constexpr double kEachSide = 0.025;
  double squares = 0;
  int freedom = 0;
  std::vector<size_t> counts(arms.size());
  for (size_t a = 1; a < arms.size(); ++a) {
    const std::vector<double> logs = log_ratios(arms[a], arms[0]);
    counts[a] = logs.size();
    if (logs.empty()) continue;
    const Moments of_arm = moments(logs);
    arms[a].log_ratio = of_arm.mean;
    squares += of_arm.sd * of_arm.sd * static_cast<double>(logs.size() - 1);
    freedom += static_cast<int>(logs.size()) - 1;
  }
  if (freedom == 0) return;
  const double t = t_quantile(freedom + 1, kEachSide), sd = std::sqrt(squares / freedom);
  for (size_t a = 1; a < arms.size(); ++a) {
    if (!arms[a].log_ratio) continue;
    const double half = t * sd / std::sqrt(static_cast<double>(counts[a]));
    arms[a].interval = Interval{*arms[a].log_ratio - half, *arms[a].log_ratio + half};
  }
}

RaceRecord race_of(const std::vector<Score>& blocks, int32_t baselines) {
  RaceRecord race{.begin = blocks.front().begin, .end = blocks.back().end};
  const auto rounds = in_rounds(blocks);
  race.rounds = static_cast<int>(rounds.size());
  for (const auto& round : rounds) {
    for (const Score& block : round) {
      const auto found = std::ranges::find(race.arms, block.slot, &RaceArm::slot);
      if (found != race.arms.end()) {
        found->blocks.push_back(block);
      } else {
        race.arms.push_back({.slot = block.slot, .blocks = {block}});
      }
    }
  }
  const auto is_baseline = [&](const RaceArm& arm) { return arm.slot < baselines; };
  const auto others = std::ranges::stable_partition(race.arms, is_baseline);
  compare_with_baseline(race.arms);
  std::ranges::stable_sort(others, [](const RaceArm& a, const RaceArm& b) {
    const auto key = [](const RaceArm& arm) { return std::pair(-static_cast<int>(arm.blocks.size()), *arm.log_ratio); };
    if (!a.log_ratio || !b.log_ratio) return a.log_ratio.has_value() && !b.log_ratio;
    return key(a) < key(b);
  });
  return race;
}

// Adds the pairs whose blocks could all be scored.
void add_pairs(PairTest& test, std::span<const EndedBlock> blocks, int32_t baselines) {
  const Stage stage = test.kind == PairTest::Kind::audit ? Stage::audit : Stage::confirm;
  const bool is_open = test.verdict == PairTest::Verdict::open;
  std::vector<Score> own;
  for (const EndedBlock& block : blocks) {
    if (block.stage != stage || block.score.begin < test.begin) continue;
    if (is_open || block.score.end <= test.end + 1) own.push_back(block.score);
  }
  for (const Score& block : own) {
    if (std::ranges::find(test.slots, block.slot) == test.slots.end()) test.slots.push_back(block.slot);
  }
  std::ranges::sort(test.slots, {}, [&](int32_t slot) { return std::pair(slot < baselines, slot); });
  for (const auto& pair : in_rounds(own)) {
    std::vector<double> ms;
    for (const int32_t slot : test.slots) {
      const auto block = std::ranges::find(pair, slot, &Score::slot);
      if (block != pair.end() && block->step_ms) ms.push_back(*block->step_ms);
    }
    if (ms.size() == test.slots.size() && ms.size() > 1) test.pairs_ms.push_back(std::move(ms));
  }
}

// The first step of the audit that was decided in that step; the step itself if no blocks are known.
int64_t begin_of_audit(std::span<const EndedBlock> blocks, int64_t decided) {
  const auto last = std::ranges::find_if(
      blocks, [&](const EndedBlock& block) { return block.stage == Stage::audit && block.score.end == decided + 1; });
  if (last == blocks.end()) return decided;
  return std::ranges::find(blocks, last->episode, &EndedBlock::episode)->score.begin;
}

std::optional<double> finite(double value) { return std::isfinite(value) ? std::optional(value) : std::nullopt; }

}  // namespace

std::vector<Trial> trials_of(std::span<const Decision> decisions) {
  std::vector<Trial> trials;
  std::optional<double> predicted_ms;
  for (const Decision& decision : decisions) {
    if (decision.what == What::predict) predicted_ms = finite(decision.value);
    if (decision.what != What::measure) continue;
    trials.push_back({.step = decision.step,
                      .label = decision.label,
                      .predicted_ms = std::exchange(predicted_ms, {}),
                      .measured_ms = decision.value > 0 ? finite(decision.value) : std::nullopt});
  }
  return trials;
}

std::vector<RaceRecord> races_of(std::span<const EndedBlock> blocks, std::span<const Decision> decisions,
                                 const Strategies& strategies, int32_t baselines) {
  std::map<int, std::vector<Score>> by_episode;
  for (const EndedBlock& block : blocks) {
    const bool is_race = block.stage == Stage::race || (block.stage == Stage::imported && block.is_observed);
    if (is_race) by_episode[block.episode].push_back(block.score);
  }
  std::vector<RaceRecord> races;
  for (const auto& [episode, scores] : by_episode) {
    const bool has_baseline = std::ranges::any_of(scores, [&](const Score& s) { return s.slot < baselines; });
    if (has_baseline) races.push_back(race_of(scores, baselines));
  }
  for (const Decision& decision : decisions) {
    if (decision.what != What::race_won) continue;
    const auto race = std::ranges::find(races, decision.step + 1, &RaceRecord::end);
    if (race == races.end()) continue;
    for (RaceArm& arm : race->arms) {
      const auto strategy = strategies.find(arm.slot);
      const bool stayed = static_cast<int>(arm.blocks.size()) == race->rounds;
      arm.has_won = stayed && strategy != strategies.end() && strategy->second.label == decision.label;
    }
  }
  return races;
}

std::vector<PairTest> tests_of(std::span<const EndedBlock> blocks, std::span<const Decision> decisions,
                               int32_t baselines, int64_t last_step) {
  using Verdict = PairTest::Verdict;
  std::vector<PairTest> tests;
  std::optional<PairTest> open;
  const auto close = [&](int64_t step, Verdict verdict) {
    open->end = step;
    open->verdict = verdict;
    tests.push_back(*open);
    open.reset();
  };
  for (const Decision& decision : decisions) {
    switch (decision.what) {
      case What::confirm:
        if (open) close(decision.step, Verdict::not_confirmed);
        open = PairTest{.begin = decision.step, .end = decision.step, .label = decision.label};
        if (std::isfinite(decision.value) && std::abs(decision.value) < 1e6)
          open->wanted = static_cast<int>(decision.value);
        break;
      case What::gain_at_least:
        if (open) open->gain_low = finite(decision.value);
        break;
      case What::commit:
        if (!open) break;
        open->gain = finite(decision.value);
        close(decision.step, Verdict::committed);
        break;
      case What::not_confirmed:
      case What::keep_baseline:
      case What::keep_committed:
      case What::drop_imported:
        if (open) close(decision.step, Verdict::not_confirmed);
        break;
      case What::audit:
        open.reset();
        tests.push_back({.kind = PairTest::Kind::audit,
                         .verdict = Verdict::kept,
                         .begin = decision.step,
                         .end = decision.step,
                         .label = decision.label,
                         .gain = finite(decision.value)});
        break;
      case What::drop_committed:
        if (!tests.empty() && tests.back().kind == PairTest::Kind::audit && tests.back().end == decision.step) {
          tests.back().verdict = Verdict::dropped;
        }
        break;
      default: break;
    }
  }
  if (open) {
    open->end = std::max(open->end, last_step);
    tests.push_back(*open);
  }
  for (PairTest& test : tests) {
    if (test.kind == PairTest::Kind::audit) test.begin = begin_of_audit(blocks, test.end);
    add_pairs(test, blocks, baselines);
    if (test.gain || test.pairs_ms.empty()) continue;
    for (size_t b = 1; b < test.slots.size(); ++b) {
      double sum = 0;
      for (const auto& ms : test.pairs_ms) sum += std::log(ms[b] / ms[0]);
      const double gain = -std::expm1(-sum / static_cast<double>(test.pairs_ms.size()));
      if (!test.gain || gain < *test.gain) test.gain = gain;
    }
  }
  return tests;
}

}  // namespace gradtune::tuner
