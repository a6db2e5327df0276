// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <algorithm>
#include <map>

#include "tuner/report/charts.h"
#include "tuner/report/markup.h"
#include "tuner/words.h"

namespace gradtune::tuner {
namespace {

using Anchor = Svg::Anchor;

constexpr double kMargin = 8, kBar = 14, kCaption = 15;

std::string style_of(const Bar& bar) {
  if (bar.lane == Lane::computation) return bar.what == "update" ? "op-update" : "op-compute";
  if (bar.lane == Lane::link) return "op-collective";
  return bar.what == "encode" ? "op-encode" : bar.what == "decode" ? "op-decode" : "op-pass";
}

// Draws few bars one by one, with their names, and many as one shape for each style, joining neighbours that touch.
void draw_line(Svg& svg, const std::vector<Bar>& bars, const Scale& x, double y, bool is_few) {
  struct Run {
    double from, to;
  };
  std::map<std::string, std::vector<Run>> runs;
  for (const Bar& bar : bars) {
    const double from = x(bar.begin_us * 1e-3), to = std::max(x(bar.end_us * 1e-3), from + 0.6);
    const std::string style = style_of(bar);
    if (is_few) {
      const std::string name = bar.bucket < 0 ? bar.what : fmt::format("{} of bucket {}", bar.what, bar.bucket);
      svg.rect(from, y, to - from, kBar - 2, style,
               fmt::format("{}: {} to {}", name, number(bar.begin_us * 1e-3), in_ms(bar.end_us * 1e-3)));
      const std::string text = bar.bucket < 0 ? bar.what : std::to_string(bar.bucket);
      if (6.5 * static_cast<double>(text.size()) + 3 < to - from) {
        const std::string_view ground = bar.lane == Lane::link ? "bar-text" : "bar-text on-light";
        svg.text((from + to) / 2, y + kBar - 4.5, Anchor::middle,
                 bar.lane == Lane::computation ? "bar-text plain" : ground, text);
      }
      continue;
    }
    std::vector<Run>& of_style = runs[style];
    if (!of_style.empty() && from <= of_style.back().to + 0.3) {
      of_style.back().to = std::max(of_style.back().to, to);
    } else {
      of_style.push_back({from, to});
    }
  }
  for (const auto& [style, of_style] : runs) {
    std::string shape;
    for (const auto& [from, to] : of_style) {
      shape += fmt::format("M{} {}h{}v{}h-{}z", coordinate(from), coordinate(y), coordinate(to - from),
                           coordinate(kBar - 2), coordinate(to - from));
    }
    svg.path(shape, style);
  }
}

// One step, with a line for each lane of few bars.
struct Panel {
  std::string title;
  std::vector<Bar> bars;
  std::string what = {};   // below the title
  double length_ms = 0;    // of the step, as the ground behind its lanes; 0: not shown
  double level_ms = 0;     // a dashed line; 0: none
  std::string level = {};  // its style
};

constexpr double kTitle = 20, kWhat = 15;

double height_of(const Panel& panel, const std::vector<LaneLines>& lanes) {
  double height = kTitle + (panel.what.empty() ? 0 : kWhat);
  for (const LaneLines& lane : lanes) height += kCaption + kBar * static_cast<double>(lane.lines.size());
  return height;
}

void draw(Svg& svg, const Panel& panel, const std::vector<LaneLines>& lanes, const Scale& x, double y, bool is_few) {
  const double bottom = y + height_of(panel, lanes);
  svg.text(kMargin, y + 14, Anchor::start, "label strong", panel.title);
  y += kTitle;
  if (!panel.what.empty()) {
    svg.text(kMargin, y + 10, Anchor::start, "small", panel.what);
    y += kWhat;
  }
  if (panel.length_ms > 0) svg.rect(x(0), y, x(panel.length_ms) - x(0), bottom - y + 2, "step-ground");
  const double top = y;
  for (const LaneLines& lane : lanes) {
    svg.text(kMargin + 2, y + 11, Anchor::start, "small", to_string(lane.lane));
    y += kCaption;
    for (const std::vector<Bar>& line : lane.lines) {
      draw_line(svg, line, x, y, is_few);
      y += kBar;
    }
  }
  if (panel.level_ms > 0) svg.line(x(panel.level_ms), top, x(panel.level_ms), bottom, panel.level);
}

// All panels have the same axis.
std::string chart(const std::vector<Panel>& panels, double width, std::string_view label, std::string_view axis) {
  constexpr size_t kFew = 150, kMostLines = 6;
  constexpr double kAxis = 36, kApart = 12;
  if (panels.empty()) return "";
  std::vector<std::vector<LaneLines>> lanes;
  double begin_ms = 0, end_ms = 0, height = kAxis;
  bool is_few = true;
  for (const Panel& panel : panels) {
    lanes.push_back(in_lines(panel.bars, kMostLines));
    height += height_of(panel, lanes.back()) + kApart;
    is_few = is_few && panel.bars.size() <= kFew;
    end_ms = std::max({end_ms, panel.length_ms, panel.level_ms});
    for (const Bar& bar : panel.bars) {
      begin_ms = std::min(begin_ms, bar.begin_us * 1e-3);
      end_ms = std::max(end_ms, bar.end_us * 1e-3);
    }
  }
  const Scale x(begin_ms, end_ms, kMargin, width - kMargin);
  Svg svg(width, height, label);
  const double bottom = height - kAxis;
  for (const double ms : ticks(x.least(), x.most(), width < 500 ? 4 : 8)) {
    svg.line(x(ms), 4, x(ms), bottom, "grid");
    svg.text(std::clamp(x(ms), 14.0, width - 18), bottom + 13, Anchor::middle, "small", fmt::format("{:g}", ms));
  }
  svg.text(width / 2, bottom + 29, Anchor::middle, "small", axis);
  double y = 0;
  for (size_t p = 0; p < panels.size(); ++p) {
    draw(svg, panels[p], lanes[p], x, y, is_few);
    y += height_of(panels[p], lanes[p]) + kApart;
  }
  return svg.str();
}

}  // namespace

std::string step_chart(const Report& report, double width) {
  std::vector<Panel> panels;
  const auto add = [&](std::string_view title, const std::vector<Bar>& bars) {
    if (!bars.empty()) panels.push_back({.title = std::string(title), .bars = bars});
  };
  add("Measured, on rank 0", report.pictures.chosen.measured);
  add("Predicted by the cost model", report.pictures.chosen.predicted);
  return chart(panels, width, "Operations of one step, measured and predicted",
               "ms since the first gradient was ready");
}

std::string comparison_chart(const Report& report, double width) {
  constexpr double kCharacter = 6.2;  // of small text, about
  std::vector<Panel> panels;
  for (const ComparedStep& compared : report.pictures.compared) {
    if (!compared.measured) continue;
    const double length_ms = compared.measured->length_us * 1e-3;
    panels.push_back(
        {.title = named(compared.role, in_ms(length_ms)),
         .bars = compared.measured->bars,
         .what = shortened(fmt::format("step {}, {}", count(compared.measured->step), compared.label),
                           static_cast<size_t>((width - 2 * kMargin) / kCharacter)),
         .length_ms = length_ms,
         .level_ms = compared.claimed_ms,
         .level = compared.role == ComparedStep::Role::after ? "level chosen-line" : "level baseline-line"});
  }
  return chart(panels, width, "One step before and after, measured", "ms since the step began");
}

}  // namespace gradtune::tuner
