// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <iterator>
#include <map>

#include "tuner/report/charts.h"
#include "tuner/report/markup.h"
#include "tuner/report/words.h"

namespace gradtune::tuner {
namespace {

using Anchor = Svg::Anchor;

constexpr double kMargin = 8, kBar = 14, kCaption = 15;

constexpr std::array kRows = {
    std::pair(Row::computation, "computation"),
    std::pair(Row::device, "compressors and sums on the thread of backward"),
    std::pair(Row::host, "compressors on host cores"),
    std::pair(Row::copies, "copies between the device and the host"),
    std::pair(Row::network, "collectives under way"),
};

std::string style_of(const Bar& bar) {
  if (bar.row == Row::computation) return bar.what == "update" ? "op-update" : "op-compute";
  if (bar.row == Row::network) return "op-collective";
  return bar.what == "encode" ? "op-encode" : bar.what == "decode" ? "op-decode" : "op-pass";
}

// Bars that overlap are drawn on different lines, as far as there are lines; further bars share the last one.
std::vector<std::vector<Bar>> in_lines(std::vector<Bar> bars) {
  constexpr size_t kMost = 6;
  std::ranges::stable_sort(bars, {}, &Bar::begin_us);
  std::vector<std::vector<Bar>> lines;
  std::vector<double> ends;
  for (Bar& bar : bars) {
    size_t line = 0;
    while (line < ends.size() && ends[line] > bar.begin_us + 1e-6) ++line;
    if (line == ends.size() && line == kMost) line = static_cast<size_t>(std::ranges::min_element(ends) - ends.begin());
    if (line == ends.size()) {
      ends.push_back(0);
      lines.emplace_back();
    }
    ends[line] = std::max(ends[line], bar.end_us);
    lines[line].push_back(std::move(bar));
  }
  return lines;
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
        const std::string_view ground = bar.row == Row::network ? "bar-text" : "bar-text on-light";
        svg.text((from + to) / 2, y + kBar - 4.5, Anchor::middle,
                 bar.row == Row::computation ? "bar-text plain" : ground, text);
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

struct Panel {
  std::string_view title;
  std::vector<std::pair<std::string_view, std::vector<std::vector<Bar>>>> rows;
  double height = 0;
};

Panel panel_of(std::string_view title, const std::vector<Bar>& bars) {
  Panel panel{.title = title, .rows = {}, .height = 20};
  for (const auto& [row, name] : kRows) {
    std::vector<Bar> of_row;
    std::ranges::copy_if(bars, std::back_inserter(of_row), [row = row](const Bar& bar) { return bar.row == row; });
    if (of_row.empty()) continue;
    panel.rows.emplace_back(name, in_lines(std::move(of_row)));
    panel.height += kCaption + kBar * static_cast<double>(panel.rows.back().second.size());
  }
  return panel;
}

}  // namespace

std::string step_chart(const Report& report, double width) {
  constexpr size_t kFew = 150;
  constexpr double kAxis = 36, kApart = 12;
  std::vector<Panel> panels;
  double end_ms = 0, begin_ms = 0;
  size_t bars = 0;
  const auto add = [&](std::string_view title, const std::vector<Bar>& of_panel) {
    if (of_panel.empty()) return;
    panels.push_back(panel_of(title, of_panel));
    for (const Bar& bar : of_panel) end_ms = std::max(end_ms, bar.end_us * 1e-3);
    for (const Bar& bar : of_panel) begin_ms = std::min(begin_ms, bar.begin_us * 1e-3);
    bars = std::max(bars, of_panel.size());
  };
  add("Measured, on rank 0", report.picture.measured);
  add("Predicted by the cost model", report.picture.predicted);
  if (panels.empty()) return "";
  double height = kAxis;
  for (const Panel& panel : panels) height += panel.height + kApart;
  const Scale x(begin_ms, end_ms, kMargin, width - kMargin);
  Svg svg(width, height, "Operations of one step, measured and predicted");
  const double bottom = height - kAxis;
  for (const double ms : ticks(x.least(), x.most(), width < 500 ? 4 : 8)) {
    svg.line(x(ms), 4, x(ms), bottom, "grid");
    svg.text(std::clamp(x(ms), 14.0, width - 18), bottom + 13, Anchor::middle, "small", fmt::format("{:g}", ms));
  }
  svg.text(width / 2, bottom + 29, Anchor::middle, "small", "ms since the first gradient was ready");
  double y = 0;
  for (const Panel& panel : panels) {
    svg.text(kMargin, y + 14, Anchor::start, "label strong", panel.title);
    double line_y = y + 20;
    for (const auto& [name, lines] : panel.rows) {
      svg.text(kMargin, line_y + 11, Anchor::start, "small", name);
      line_y += kCaption;
      for (const auto& line : lines) {
        draw_line(svg, line, x, line_y, bars <= kFew);
        line_y += kBar;
      }
    }
    y += panel.height + kApart;
  }
  return svg.str();
}

}  // namespace gradtune::tuner
