// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>

#include "engine/core/median.h"
#include "tuner/report/charts.h"
#include "tuner/report/markup.h"
#include "tuner/words.h"

namespace gradtune::tuner {
namespace {

using Anchor = Svg::Anchor;

constexpr double kLeft = 44, kRight = 8, kStages = 34, kBottom = 62;

// A limit that all but a few steps are below: rare long steps would flatten the others.
double usual_most(const Report& report) {
  std::vector<double> ms;
  for (const ReportStep& step : report.steps) {
    if (step.counts) ms.push_back(step.ms);
  }
  if (ms.empty()) {
    for (const ReportStep& step : report.steps) ms.push_back(step.ms);
  }
  const auto place = static_cast<std::ptrdiff_t>(0.98 * static_cast<double>(ms.size() - 1));
  std::ranges::nth_element(ms, ms.begin() + place);
  const double most = ms[static_cast<size_t>(place)];
  // A slow period may be longer than that, and would hide differences between the other steps.
  constexpr double kSpell = 3;
  const double usual = std::max(core::median(ms), report.standing.comparison.baseline_ms);
  return 1.2 * std::max(std::min(most, kSpell * usual), report.standing.comparison.baseline_ms);
}

std::string_view stage_name(Stage stage) {
  switch (stage) {
    case Stage::imported: return "imported";
    case Stage::observe: return "observe";
    case Stage::partition: return "search";
    case Stage::race: return "race";
    case Stage::confirm: return "confirm";
    case Stage::watch: return "watch";
    case Stage::audit: return "audit";
  }
  return "";
}

// Steps at the same place are drawn once; many at one place become a line from the fastest to the slowest.
class Points {
 public:
  Points(const Scale& x, const Scale& y) : x_(x), y_(y) {}

  void add(const std::string& style, double step, double ms) {
    const double x = std::round(2 * x_(step)) / 2, y = y_(ms);
    auto [place, is_new] = columns_[style].try_emplace(x, y, y);
    if (is_new) return;
    place->second.first = std::min(place->second.first, y);
    place->second.second = std::max(place->second.second, y);
  }

  void draw(Svg& svg) const {
    for (const auto& [style, columns] : columns_) {
      std::string data;
      for (const auto& [x, range] : columns) {
        data += fmt::format("M{} {}", coordinate(x), coordinate(range.first));
        data += range.second - range.first < 0.5 ? "h0" : "V" + coordinate(range.second);
      }
      svg.path(data, "dot " + style);
    }
  }

 private:
  const Scale &x_, &y_;
  std::map<std::string, std::map<double, std::pair<double, double>>> columns_;
};

// Stages within a few pixels of each other form one band.
void draw_stages(Svg& svg, const Report& report, const Scale& x) {
  constexpr double kTop = 14, kHeight = 14, kLetter = 6.3;
  size_t number = 0;
  for (const StageRun& run : report.stages) {
    const double from = x(static_cast<double>(run.begin)), to = x(static_cast<double>(run.end));
    svg.rect(from, kTop, std::max(to - from, 0.7), kHeight, number++ % 2 == 0 ? "band" : "band other-band",
             fmt::format("{}: steps {} to {}", stage_name(run.stage), run.begin, run.end - 1));
    const std::string_view name = stage_name(run.stage);
    if (kLetter * static_cast<double>(name.size()) + 4 < to - from) {
      svg.text((from + to) / 2, kTop + 11, Anchor::middle, "small", name);
    }
  }
}

void draw_levels(Svg& svg, const Report& report, const Scale& y, double width) {
  const auto level = [&](double ms, std::string_view style) {
    if (ms > 0 && ms < y.most()) svg.line(kLeft, y(ms), width - kRight, y(ms), style);
  };
  const Standing& standing = report.standing;
  level(standing.comparison.baseline_ms, "level baseline-line");
  if (standing.state == Standing::State::committed) level(standing.comparison.committed_ms, "level chosen-line");
}

// Numbers that would overlap move to another row; a number that fits nowhere is left out, and only its line is
// drawn.
void draw_events(Svg& svg, const Report& report, const Scale& x, double top, double bottom) {
  constexpr int kRows = 3;
  constexpr double kRowHeight = 13, kApart = 15;
  std::vector<double> ends(kRows, -1e9);
  for (const size_t event : marked_events(report)) {
    const double at = x(static_cast<double>(report.events[event].step));
    svg.line(at, top, at, bottom, "event");
    for (size_t row = 0; row < kRows; ++row) {
      if (at - ends[row] < kApart) continue;
      ends[row] = at;
      const double y = bottom + 8 + kRowHeight * static_cast<double>(row);
      svg.circle(at, y, 6.5, "mark");
      svg.text(at, y + 3, Anchor::middle, "mark-text", std::to_string(event + 1));
      break;
    }
  }
}

}  // namespace

std::string role_of(const Report& report, int32_t slot) {
  if (slot < report.baselines) return "baseline";
  const auto strategy = report.strategies.find(slot);
  return strategy == report.strategies.end() ? "candidate" : role_of_label(report, strategy->second.label);
}

std::string role_of_label(const Report& report, const std::string& label) {
  const Standing& standing = report.standing;
  const bool is_chosen = standing.state == Standing::State::committed || standing.state == Standing::State::pinned;
  if (is_chosen && label == standing.label) return "chosen";
  const bool was_pinned = standing.former && report.job.tuning.budget_steps == 0 && label == standing.former->label;
  return report.kept.contains(label) || was_pinned ? "former" : "candidate";
}

std::string letter(int kind) {
  std::string name(1, static_cast<char>('A' + kind % 26));
  return kind < 26 ? name : letter(kind / 26 - 1) + name;
}

std::vector<size_t> marked_events(const Report& report) {
  constexpr size_t kMost = 100;
  std::vector<size_t> marked;
  for (size_t e = 0; e < report.events.size(); ++e) {
    if (report.events[e].step >= 0) marked.push_back(e);
  }
  if (marked.size() > kMost) marked.erase(marked.begin(), marked.end() - kMost);
  return marked;
}

std::string steps_chart(const Report& report, double width) {
  if (report.steps.empty()) return "";
  const double height = width < 500 ? 300 : 340, top = kStages, bottom = height - kBottom;
  const auto [first, last] = std::ranges::minmax_element(report.steps, {}, &ReportStep::step);
  const Scale x(static_cast<double>(first->step), static_cast<double>(last->step) + 1, kLeft, width - kRight);
  const Scale y(0, usual_most(report), bottom, top);
  Svg svg(width, height, "Time of each training step, with the tuner's stages and decisions");

  for (const double ms : ticks(0, y.most(), 5)) {
    svg.line(kLeft, y(ms), width - kRight, y(ms), "grid");
    svg.text(kLeft - 4, y(ms) + 4, Anchor::end, "small", fmt::format("{:g}", ms));
  }
  svg.text(2, 10, Anchor::start, "small", "ms a step");
  for (const double step : ticks(x.least(), x.most(), width < 500 ? 4 : 8)) {
    if (step != std::floor(step)) continue;
    svg.text(std::min(x(step), width - 20), height - 6, Anchor::middle, "small", fmt::format("{:.0f}", step));
  }
  svg.text(2, height - 6, Anchor::start, "small", "step");
  draw_stages(svg, report, x);
  draw_events(svg, report, x, top, bottom);

  std::map<int32_t, std::string> roles;
  Points points(x, y), beyond(x, y);
  for (const ReportStep& step : report.steps) {
    std::string& role = roles[step.slot];
    if (role.empty()) role = role_of(report, step.slot);
    const auto at = static_cast<double>(step.step);
    if (step.ms <= y.most()) {
      points.add(step.counts ? role : "excluded", at, step.ms);
    } else {
      beyond.add("beyond", at, y.most());
    }
  }
  points.draw(svg);
  beyond.draw(svg);
  draw_levels(svg, report, y, width);
  return svg.str();
}

}  // namespace gradtune::tuner
