// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "tuner/report/charts.h"
#include "tuner/report/markup.h"
#include "tuner/words.h"

namespace gradtune::tuner {
namespace {

using Anchor = Svg::Anchor;

// A log-ratio as percent of the baseline's step time.
double as_percent(double log_ratio) { return 100 * std::expm1(log_ratio); }

std::string signed_percent(double value) { return value == 0 ? "0 %" : fmt::format("{:+.0f} %", value); }

// The number of letters that fit, also in a wide font.
size_t letters(double width, bool is_strong) { return static_cast<size_t>(width / (is_strong ? 8.4 : 7.4)); }

}  // namespace

std::string race_chart(const Report& report, const RaceRecord& race, double width) {
  constexpr double kRow = 38, kTop = 8, kBottom = 34, kMargin = 10, kMostPercent = 150;
  const RaceArm& baseline = race.arms.front();
  double least = 0, most = 0;
  const auto include = [&](double percent) {
    if (!std::isfinite(percent)) return;
    least = std::min(least, percent);
    most = std::max(most, std::min(percent, kMostPercent));
  };
  const auto blocks_of = [&](const RaceArm& arm) {
    std::vector<double> percents;
    for (size_t round = 0; round < std::min(arm.blocks.size(), baseline.blocks.size()); ++round) {
      const auto &own = arm.blocks[round].step_ms, &other = baseline.blocks[round].step_ms;
      if (own && other && *other > 0) percents.push_back(100 * (*own / *other - 1));
    }
    return percents;
  };
  for (const RaceArm& arm : race.arms) {
    for (const double percent : blocks_of(arm)) include(percent);
    if (arm.interval) include(std::max(as_percent(arm.interval->low), -100.0));
    if (arm.interval) include(as_percent(arm.interval->high));
  }
  const double span = std::max(most - least, 1.0);
  const Scale x(least - 0.05 * span, most + 0.05 * span, kMargin, width - kMargin);
  const double height = kTop + kRow * static_cast<double>(race.arms.size()) + kBottom, bottom = height - kBottom;
  Svg svg(width, height, "Step times of the arms of the race, relative to the baseline");
  for (const double percent : ticks(x.least(), x.most(), width < 500 ? 4 : 8)) {
    svg.line(x(percent), kTop, x(percent), bottom, percent == 0 ? "zero" : "grid");
    svg.text(std::clamp(x(percent), 20.0, width - 20), bottom + 13, Anchor::middle, "small", signed_percent(percent));
  }
  svg.text(width / 2, bottom + 28, Anchor::middle, "small", "step time compared with the baseline's; left is faster");
  for (size_t a = 0; a < race.arms.size(); ++a) {
    const RaceArm& arm = race.arms[a];
    const double y = kTop + kRow * static_cast<double>(a), middle = y + 25;
    std::string label = report.label(arm.slot);
    const int rounds = static_cast<int>(arm.blocks.size());
    const std::string fate = arm.has_won             ? ", won"
                             : a == 0                ? ""
                             : rounds == race.rounds ? ", stayed to the end"
                                                     : fmt::format(", out after round {}", rounds);
    const size_t room = letters(width - 2 * kMargin, arm.has_won);
    label = shortened(label, room > fate.size() + 8 ? room - fate.size() : 8) + fate;
    svg.text(kMargin, y + 12, Anchor::start, arm.has_won ? "label strong" : "label", label);
    const std::string role = a == 0 ? "baseline" : arm.has_won ? "chosen" : "candidate";
    if (a == 0) {
      svg.rect(x(0) - 5, middle - 5, 10, 10, "fill " + role);
      continue;
    }
    if (arm.interval) {
      const double low = x(as_percent(arm.interval->low)), high = x(as_percent(arm.interval->high));
      svg.line(low, middle, high, middle, "interval " + role);
    }
    for (const double percent : blocks_of(arm)) svg.circle(x(percent), middle, 3, "block " + role);
    if (!arm.log_ratio) continue;
    const double at = x(as_percent(*arm.log_ratio));
    svg.path(fmt::format("M{0} {1}l5 6l-5 6l-5 -6z", coordinate(at), coordinate(middle - 6)), "fill " + role);
  }
  return svg.str();
}

std::string pairs_chart(const Report& report, const PairTest& test, double width) {
  constexpr double kRow = 17, kTop = 8, kBottom = 34, kLeft = 30, kRight = 60;
  double least = INFINITY, most = 0;
  for (const auto& pair : test.pairs_ms) {
    for (const double ms : pair) {
      least = std::min(least, ms);
      most = std::max(most, ms);
    }
  }
  const double span = std::max(most - least, 1e-3 * most);
  const Scale x(std::max(least - 0.08 * span, 0.0), most + 0.08 * span, kLeft, width - kRight);
  const double height = kTop + kRow * static_cast<double>(test.pairs_ms.size()) + kBottom, bottom = height - kBottom;
  Svg svg(width, height, "Step times of both blocks of each pair");
  for (const double ms : ticks(x.least(), x.most(), width < 500 ? 4 : 8)) {
    svg.line(x(ms), kTop, x(ms), bottom, "grid");
    svg.text(x(ms), bottom + 13, Anchor::middle, "small", fmt::format("{:g}", ms));
  }
  svg.text(width / 2, bottom + 28, Anchor::middle, "small",
           width < 500 ? "ms a step, median of each block"
                       : "ms a step, median of each block; at the right the difference of each pair");
  for (size_t p = 0; p < test.pairs_ms.size(); ++p) {
    const auto& pair = test.pairs_ms[p];
    const double y = kTop + kRow * (static_cast<double>(p) + 0.5);
    svg.text(kLeft - 8, y + 4, Anchor::end, "small", std::to_string(p + 1));
    const auto [low, high] = std::ranges::minmax(pair);
    svg.line(x(low), y, x(high), y, "pair");
    for (size_t b = 1; b < pair.size(); ++b) {
      svg.rect(x(pair[b]) - 4.5, y - 4.5, 9, 9, "fill baseline",
               fmt::format("{}: {}", report.label(test.slots[b]), in_ms(pair[b])));
    }
    const double best_ms = *std::min_element(pair.begin() + 1, pair.end());
    svg.text(width - 4, y + 4, Anchor::end, "small", fmt::format("{:+.1f} %", 100 * (pair[0] / best_ms - 1)));
    svg.circle(x(pair[0]), y, 5.5, "fill chosen", fmt::format("{}: {}", test.label, in_ms(pair[0])));
  }
  return svg.str();
}

}  // namespace gradtune::tuner
