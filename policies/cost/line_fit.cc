// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
#include "policies/cost/line_fit.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <utility>

#include "engine/core/median.h"

namespace gradtune::policies {
namespace {

// Samples of equal x count as their quantile, weighted by their number. Samples whose sizes are within a factor of
// two together weigh at most kMostAlike, because a plan with many small buckets must not outvote a few large ones.
struct Heap {
  double x = 0, y = 0, weight = 0;
};
std::vector<Heap> heaps_of(std::vector<Point> points, double quantile) {
  std::ranges::sort(points, {}, [](const Point& point) { return std::pair(point.x, point.y); });
  std::vector<Heap> heaps;
  for (size_t begin = 0, end = 0; begin < points.size(); begin = end) {
    while (end < points.size() && points[end].x == points[begin].x) ++end;
    const auto count = static_cast<double>(end - begin);
    const double y = points[begin + static_cast<size_t>(quantile * count)].y;
    heaps.push_back({points[begin].x, std::max(y, 1e-3), count});
  }
  constexpr double kMostAlike = 8;
  std::map<int, double> alike;
  const auto octave = [](const Heap& heap) { return heap.x >= 1 ? std::ilogb(heap.x) : -1; };
  for (const Heap& heap : heaps) alike[octave(heap)] += heap.weight;
  for (Heap& heap : heaps) heap.weight *= std::min(1.0, kMostAlike / alike[octave(heap)]);
  return heaps;
}

// Lines are drawn through pairs of heaps, and each line is compared with all heaps. If there are many heaps, some of
// them represent their neighbours, because the work would grow with the cube of their number.
std::vector<Heap> typical(const std::vector<Heap>& heaps) {
  constexpr size_t kMost = 32;
  if (heaps.size() <= kMost) return heaps;
  std::vector<Heap> chosen;
  for (size_t i = 0; i < kMost; ++i) {
    const auto at = [&](size_t part) {
      return heaps.begin() + static_cast<std::ptrdiff_t>(part * heaps.size() / kMost);
    };
    std::vector<Heap> neighbours(at(i), at(i + 1));
    const auto middle = neighbours.begin() + static_cast<std::ptrdiff_t>(neighbours.size() / 2);
    std::ranges::nth_element(neighbours, middle, {}, &Heap::y);
    chosen.push_back(*middle);
  }
  return chosen;
}

double relative_error(const Line& line, const std::vector<Heap>& heaps) {
  double sum = 0;
  for (const Heap& heap : heaps) sum += heap.weight * std::abs(line.at(heap.x) - heap.y) / heap.y;
  return sum;
}

}  // namespace

Line fit_line(std::vector<Point> points, const LineFit& how) {
  constexpr double kFarWeight = 4, kMostOff = 3;
  const double expected_fixed = how.expected_fixed;
  if (points.empty()) return {};
  std::vector<Heap> heaps = heaps_of(std::move(points), how.quantile);
  std::vector<Heap> ends = typical(heaps);
  if (how.expected_far) {
    const Heap far{how.expected_far->x, how.expected_far->y, kFarWeight};
    heaps.push_back(far);
    ends.push_back(far);
  }
  if (heaps.size() == 1) {
    const auto& [x, y, weight] = heaps[0];
    const double fixed = std::min(expected_fixed, y / 2);
    return x > 0 ? Line{fixed, std::max((y - fixed) / x, how.least_unit)} : Line{y, how.least_unit};
  }
  Line best{expected_fixed, how.least_unit};
  double least = std::numeric_limits<double>::infinity();
  const auto consider = [&](const Line& line) {
    if (line.fixed < 0 || line.unit < how.least_unit) return;
    double error = relative_error(line, heaps);
    if (expected_fixed > 0) error += std::min(std::abs(std::log(line.fixed / expected_fixed)), kMostOff);
    if (error < least) {
      least = error;
      best = line;
    }
  };
  for (size_t a = 0; a < ends.size(); ++a) {
    consider({std::max(ends[a].y - how.least_unit * ends[a].x, 0.0), how.least_unit});
    if (ends[a].x > 0) {
      consider({0, ends[a].y / ends[a].x});
      consider({expected_fixed, (ends[a].y - expected_fixed) / ends[a].x});
    }
    for (size_t b = a + 1; b < ends.size(); ++b) {
      const double unit = (ends[b].y - ends[a].y) / (ends[b].x - ends[a].x);
      consider({ends[a].y - unit * ends[a].x, unit});
    }
  }
  return best;
}

RateQuality quality_of(const Line& line, const std::vector<Point>& points) {
  std::vector<double> errors;
  for (const Point& point : points) {
    const double fitted = std::max(line.at(point.x), 1e-3);
    errors.push_back(std::abs(point.y - fitted) / fitted);
  }
  return {static_cast<int>(points.size()), core::median_in_place(errors, core::Middle::upper)};
}

double RateQuality::standard_error() const {
  // The standard error of a median is 1.25 sigma / sqrt(n); sigma is 1.48 times the median deviation.
  return samples > 0 ? 1.85 * error / std::sqrt(samples) : 0;
}

}  // namespace gradtune::policies
