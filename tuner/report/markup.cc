// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
#include "tuner/report/markup.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "tuner/files/printable.h"

namespace gradtune::tuner {

std::string escape(std::string_view text) {
  std::string out;
  while (!text.empty()) {
    const size_t length = shown_character(text);
    switch (length == 0 ? '\0' : text[0]) {
      case '\0': out += kReplacement; break;
      case '&': out += "&amp;"; break;
      case '<': out += "&lt;"; break;
      case '>': out += "&gt;"; break;
      case '"': out += "&quot;"; break;
      case '\'': out += "&#39;"; break;
      default: out += text.substr(0, length);
    }
    text.remove_prefix(std::max<size_t>(length, 1));
  }
  return out;
}

std::string coordinate(double value) {
  if (!std::isfinite(value)) return "0";
  std::string text = fmt::format("{:.1f}", std::clamp(value, -1e6, 1e6));
  if (text.ends_with(".0")) text.resize(text.size() - 2);
  return text == "-0" ? "0" : text;
}

Svg::Svg(double width, double height, std::string_view label)
    : text_(fmt::format(R"(<svg viewBox="0 0 {} {}" role="img" aria-label="{}">)", coordinate(width),
                        coordinate(height), escape(label))) {}

void Svg::rect(double x, double y, double width, double height, std::string_view style, std::string_view title) {
  text_ += fmt::format(R"(<rect x="{}" y="{}" width="{}" height="{}" class="{}")", coordinate(x), coordinate(y),
                       coordinate(std::max(width, 0.0)), coordinate(std::max(height, 0.0)), style);
  text_ += title.empty() ? "/>" : fmt::format("><title>{}</title></rect>", escape(title));
}

void Svg::line(double x1, double y1, double x2, double y2, std::string_view style) {
  text_ += fmt::format(R"(<line x1="{}" y1="{}" x2="{}" y2="{}" class="{}"/>)", coordinate(x1), coordinate(y1),
                       coordinate(x2), coordinate(y2), style);
}

void Svg::circle(double x, double y, double radius, std::string_view style, std::string_view title) {
  text_ += fmt::format(R"(<circle cx="{}" cy="{}" r="{}" class="{}")", coordinate(x), coordinate(y), coordinate(radius),
                       style);
  text_ += title.empty() ? "/>" : fmt::format("><title>{}</title></circle>", escape(title));
}

void Svg::path(std::string_view data, std::string_view style) {
  if (!data.empty()) text_ += fmt::format(R"(<path d="{}" class="{}"/>)", data, style);
}

void Svg::text(double x, double y, Anchor anchor, std::string_view style, std::string_view what) {
  const std::string_view at = anchor == Anchor::start ? "start" : anchor == Anchor::middle ? "middle" : "end";
  text_ += fmt::format(R"(<text x="{}" y="{}" text-anchor="{}" class="{}">{}</text>)", coordinate(x), coordinate(y), at,
                       style, escape(what));
}

Scale::Scale(double least, double most, double from, double to)
    : least_(std::isfinite(least) ? least : 0), most_(std::isfinite(most) ? most : 1), from_(from), to_(to) {
  if (!(most_ > least_)) most_ = least_ + 1;
}

double Scale::operator()(double value) const {
  const double share = std::clamp((value - least_) / (most_ - least_), 0.0, 1.0);
  return from_ + share * (to_ - from_);
}

std::vector<double> ticks(double least, double most, int about) {
  if (!(most > least) || !std::isfinite(least) || !std::isfinite(most)) return {};
  const double raw = (most - least) / std::max(about, 1), power = std::pow(10, std::floor(std::log10(raw)));
  double step = 10 * power;
  for (const double factor : {1.0, 2.0, 5.0}) {
    if (factor * power >= raw) {
      step = factor * power;
      break;
    }
  }
  std::vector<double> values;
  constexpr size_t kMost = 100;
  for (double at = std::ceil(least / step - 1e-9); at * step <= most + 1e-9 * step && values.size() < kMost; ++at) {
    values.push_back(at * step + 0.0);  // otherwise -0 would be printed
  }
  return values;
}

std::string table(std::initializer_list<std::string_view> heads, const std::vector<Cells>& rows) {
  std::string text = R"(<div class="scroll" tabindex="0"><table><thead><tr>)";
  std::vector<bool> is_number;
  for (std::string_view head : heads) {
    is_number.push_back(head.starts_with('#'));
    if (is_number.back()) head.remove_prefix(1);
    text += fmt::format("<th scope=\"col\"{}>{}</th>", is_number.back() ? R"( class="n")" : "", escape(head));
  }
  text += "</tr></thead><tbody>";
  for (const Cells& cells : rows) {
    text += "<tr>";
    for (size_t c = 0; c < cells.size(); ++c) {
      text += fmt::format("<td{}>{}</td>", is_number[c] ? R"( class="n")" : "", cells[c]);
    }
    text += "</tr>\n";
  }
  return text + "</tbody></table></div>";
}

}  // namespace gradtune::tuner
