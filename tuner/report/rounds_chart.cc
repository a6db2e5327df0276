// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <map>

#include "tuner/report/charts.h"
#include "tuner/report/markup.h"
#include "tuner/words.h"

namespace gradtune::tuner {
namespace {

using Anchor = Svg::Anchor;

constexpr double kLeft = 44, kRight = 8, kTop = 36, kBottom = 36;
constexpr double kWanted = 100 * kShareOfExchange;
constexpr double kLeastShown = kWanted / 10;

double percent_of(const RoundTimes& round) { return 100 * round.share(); }

// All but a few rounds are below it, and so is what is wanted.
double usual_most(const std::vector<RoundTimes>& rounds) {
  std::vector<double> percents;
  for (const RoundTimes& round : rounds) {
    if (round.counts && std::isfinite(round.share())) percents.push_back(percent_of(round));
  }
  if (percents.empty()) return 2 * kWanted;
  const auto place = static_cast<std::ptrdiff_t>(0.98 * static_cast<double>(percents.size() - 1));
  std::ranges::nth_element(percents, percents.begin() + place);
  return std::max(1.2 * percents[static_cast<size_t>(place)], 2 * kWanted);
}

void draw_wanted(Svg& svg, double y, double width) {
  svg.line(kLeft, y, width - kRight, y, "level baseline-line");
  svg.text(width - kRight, y - 4, Anchor::end, "small", fmt::format("wanted: {:g} %", kWanted));
}

// The numbers of updates, where each begins; those without room are left out.
void draw_lengths(Svg& svg, const std::vector<RoundsRun>& runs, const Scale& x, double bottom) {
  double end = -1e9;
  for (const RoundsRun& run : runs) {
    const double at = x(static_cast<double>(run.choice.step));
    svg.line(at, kTop - 16, at, bottom, "event");
    const RoundShape& round = run.choice.round;
    const std::string text =
        round.delay == 0 ? count(round.updates) : fmt::format("{} ({})", count(round.updates), count(round.delay));
    if (at < end || at > x(x.most()) - 20) continue;
    svg.text(at + 3, kTop - 8, Anchor::start, "small", text);
    end = at + 6.5 * static_cast<double>(text.size()) + 8;
  }
}

// Powers of two, from 1 to at least `most`.
std::vector<double> doublings(double most) {
  std::vector<double> values{1};
  while (values.back() < most) values.push_back(2 * values.back());
  return values;
}

}  // namespace

std::string rounds_chart(const Report& report, double width) {
  const std::vector<RoundTimes>& rounds = report.rounds.rounds;
  if (rounds.empty()) return "";
  const double height = width < 500 ? 220 : 240, bottom = height - kBottom;
  const Scale x(static_cast<double>(rounds.front().round), static_cast<double>(rounds.back().round) + 1, kLeft,
                width - kRight);
  const Scale y(0, usual_most(rounds), bottom, kTop);
  Svg svg(width, height,
          "Waiting for the exchange of each round as a share of the updates between, beside the wanted share");
  for (const double value : ticks(0, y.most(), 5)) {
    svg.line(kLeft, y(value), width - kRight, y(value), "grid");
    svg.text(kLeft - 4, y(value) + 4, Anchor::end, "small", fmt::format("{:g} %", value));
  }
  for (const double round : ticks(x.least(), x.most(), width < 500 ? 4 : 8)) {
    if (round != std::floor(round)) continue;
    svg.text(std::min(x(round), width - 20), bottom + 14, Anchor::middle, "small", fmt::format("{:.0f}", round));
  }
  svg.text((kLeft + width - kRight) / 2, bottom + 30, Anchor::middle, "small", "round");
  svg.text(2, 12, Anchor::start, "small", "waiting / updates between; above: updates (delay)");
  draw_lengths(svg, report.rounds.runs, x, bottom);
  // Rounds at the same place are drawn once, so that many of them stay a small picture.
  std::map<std::string, std::map<std::pair<double, double>, bool>> points;
  for (const RoundTimes& round : rounds) {
    if (!std::isfinite(round.share())) continue;
    const bool is_beyond = percent_of(round) > y.most();
    const std::string style = is_beyond ? "beyond" : round.counts ? role_of(report, round.slot) : "excluded";
    const double at_x = std::round(2 * x(static_cast<double>(round.round))) / 2;
    points[style][{at_x, std::round(2 * y(percent_of(round))) / 2}] = true;
  }
  for (const auto& [style, places] : points) {
    std::string data;
    for (const auto& [place, is_there] : places) {
      data += fmt::format("M{} {}h0", coordinate(place.first), coordinate(place.second));
    }
    svg.path(data, "dot " + style);
  }
  draw_wanted(svg, y(kWanted), width);
  return svg.str();
}

// Both axes are logarithmic, so that the prediction without a delay is a straight line.
std::string round_length_chart(const Report& report, double width) {
  const auto times = report.rounds.deciding();
  if (!times || !(times->exchange_ms > 0) || !(times->update_ms > 0)) return "";
  const RoundChoice& choice = report.rounds.runs.back().choice;
  const auto predicted = [&](const RoundShape& round) { return 100 * times->share_of_waiting(round); };
  const double at_one = predicted({.updates = 1, .fragments = choice.allowed.fragments}), enough = at_one / kWanted;
  const std::vector<double> numbers =
      doublings(std::clamp(enough, static_cast<double>(choice.allowed.most), double{kMostUpdatesARound}));
  double low = std::clamp(at_one / numbers.back(), kLeastShown, kWanted), high = std::max(at_one, kWanted);
  for (const RoundsRun& run : report.rounds.runs) {
    if (!run.share || !(*run.share > 0)) continue;
    low = std::min(low, std::max(100 * *run.share, kLeastShown));
    high = std::max(high, 100 * *run.share);
  }
  const double height = width < 500 ? 220 : 240, bottom = height - kBottom;
  const Scale x(0, std::log2(numbers.back()), kLeft + 14, width - kRight - 8);
  const Scale y(std::log10(low) - 0.1, std::log10(high) + 0.1, bottom, kTop);
  const auto place = [&](double updates, double percent) {
    return std::pair(x(std::log2(updates)), y(std::log10(std::max(percent, low))));
  };
  Svg svg(width, height, "The predicted share of waiting by the number of updates between two exchanges");
  svg.text(2, 12, Anchor::start, "small", "waiting / updates between");
  for (int power = static_cast<int>(std::floor(y.least())); power <= y.most(); ++power) {
    for (const double factor : std::array{1.0, 2.0, 5.0}) {
      const double value = factor * std::pow(10, power);
      if (std::log10(value) < y.least() || std::log10(value) > y.most()) continue;
      if (factor != 1 && y.most() - y.least() > 3) continue;
      svg.line(kLeft, y(std::log10(value)), width - kRight, y(std::log10(value)), "grid");
      svg.text(kLeft - 4, y(std::log10(value)) + 4, Anchor::end, "small", fmt::format("{:g} %", value));
    }
  }
  const size_t apart = std::max<size_t>(1, numbers.size() / (width < 500 ? 6 : 12));
  for (size_t n = 0; n < numbers.size(); n += apart) {
    svg.text(place(numbers[n], kWanted).first, bottom + 14, Anchor::middle, "small", fmt::format("{:g}", numbers[n]));
  }
  svg.text((kLeft + width - kRight) / 2, bottom + 30, Anchor::middle, "small", "updates a round; the band is allowed");
  const double from = x(std::log2(static_cast<double>(choice.allowed.least))),
               to = x(std::log2(static_cast<double>(choice.allowed.most)));
  svg.rect(from - 5, kTop, to - from + 10, bottom - kTop, "step-ground",
           fmt::format("{} to {} are allowed", count(choice.allowed.least), count(choice.allowed.most)));
  std::pair<double, double> before;
  for (const double updates : numbers) {
    const RoundShape round = with_least_delay(*times, static_cast<int64_t>(updates), choice.allowed);
    const std::pair<double, double> at = place(updates, predicted(round));
    if (updates > 1) svg.line(before.first, before.second, at.first, at.second, "interval candidate");
    before = at;
  }
  draw_wanted(svg, y(std::log10(kWanted)), width);
  for (const RoundsRun& run : report.rounds.runs) {
    if (!run.share || !(*run.share > 0)) continue;
    const auto [at_x, at_y] = place(static_cast<double>(run.choice.round.updates), 100 * *run.share);
    svg.circle(at_x, at_y, 4, "block candidate",
               fmt::format("{}: measured {}", plural(run.choice.round.updates, "update"), percent(*run.share)));
  }
  const auto [at_x, at_y] = place(static_cast<double>(choice.round.updates), predicted(choice.round));
  svg.rect(
      at_x - 4.5, at_y - 4.5, 9, 9, "fill chosen",
      fmt::format("{}: predicted {}", plural(choice.round.updates, "update"), percent(predicted(choice.round) / 100)));
  return svg.str();
}

}  // namespace gradtune::tuner
