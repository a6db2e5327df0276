// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>

#include "tuner/report/charts.h"
#include "tuner/report/markup.h"
#include "tuner/words.h"

namespace gradtune::tuner {
namespace {

using Anchor = Svg::Anchor;

constexpr double kLeft = 58, kRight = 8;

}  // namespace

// Sizes are on a logarithmic axis, as those of one strategy differ by factors of thousands.
std::string bucket_chart(const Report& report, double width) {
  constexpr double kTop = 22, kSizes = 150, kLane = 14, kOrder = 90, kAxis = 34;
  const std::vector<BucketRow>& buckets = report.buckets;
  if (buckets.empty()) return "";
  const bool has_host = std::ranges::any_of(buckets, &BucketRow::uses_host);
  const bool has_late = std::ranges::any_of(buckets, [](const auto& b) { return b.due == core::Due::forward; });
  const double sizes_end = kTop + kSizes;
  double lanes_end = sizes_end + 4;
  if (has_host) lanes_end += kLane;
  if (has_late) lanes_end += kLane;
  const double order_top = lanes_end + 24, order_end = order_top + kOrder, height = order_end + kAxis;

  const auto [least, most] = std::ranges::minmax_element(buckets, {}, &BucketRow::bytes);
  const double low = std::floor(std::log2(std::max<double>(static_cast<double>(least->bytes), 1)) - 1);
  const double high = std::ceil(std::log2(std::max<double>(static_cast<double>(most->bytes), 2)));
  const Scale x(0, static_cast<double>(buckets.size()), kLeft, width - kRight);
  const Scale y(low, high, sizes_end, kTop);
  const double column = x(1) - x(0), gap = column > 4 ? std::min(0.2 * column, 6.0) : 0;
  Svg svg(width, height, "Buckets: size, option, and place in the order of collectives");

  svg.text(2, 12, Anchor::start, "small", "size of a bucket");
  for (const double power : ticks(low, high, 4)) {
    if (power != std::floor(power)) continue;
    svg.line(kLeft, y(power), width - kRight, y(power), "grid");
    const double bytes = std::exp2(power);
    const std::string text = bytes >= 1 << 20   ? fmt::format("{:g} MiB", bytes / (1 << 20))
                             : bytes >= 1 << 10 ? fmt::format("{:g} KiB", bytes / (1 << 10))
                                                : fmt::format("{:g} B", bytes);
    svg.text(kLeft - 4, y(power) + 4, Anchor::end, "small", text);
  }
  // Equal neighbours without a gap between them form one shape, so that many buckets stay a small picture.
  std::map<int, std::string> shapes;
  for (size_t b = 0; b < buckets.size(); ++b) {
    const BucketRow& bucket = buckets[b];
    const double left = x(static_cast<double>(b)) + gap / 2, right = left + column - gap;
    const double top = y(std::log2(std::max<double>(static_cast<double>(bucket.bytes), 1)));
    shapes[bucket.kind] += fmt::format("M{} {}V{}H{}V{}z", coordinate(left), coordinate(sizes_end), coordinate(top),
                                       coordinate(right), coordinate(sizes_end));
    if (column >= 16) {
      svg.text((left + right) / 2, top - 3, Anchor::middle, "small strong", letter(bucket.kind));
    }
  }
  for (const auto& [kind, shape] : shapes) svg.path(shape, fmt::format("fill kind{}", kind % 7));

  const auto lane = [&](double top, std::string_view name, auto has) {
    svg.text(2, top + 10, Anchor::start, "small", name);
    std::string shape;
    for (size_t b = 0; b < buckets.size(); ++b) {
      if (!has(buckets[b])) continue;
      const double left = x(static_cast<double>(b)) + gap / 2;
      shape += fmt::format("M{} {}h{}v8h-{}z", coordinate(left), coordinate(top + 2), coordinate(column - gap),
                           coordinate(column - gap));
    }
    svg.path(shape, "fill lane");
  };
  double top = sizes_end + 4;
  if (has_host) {
    lane(top, "on host", [](const BucketRow& bucket) { return bucket.uses_host; });
    top += kLane;
  }
  if (has_late) lane(top, "late", [](const BucketRow& bucket) { return bucket.due == core::Due::forward; });

  size_t collectives = 0;
  for (const BucketRow& bucket : buckets) collectives += bucket.places.size();
  const Scale place_y(0, std::max<double>(static_cast<double>(collectives), 1), order_top, order_end);
  svg.text(2, order_top - 8, Anchor::start, "small", "place of its collectives in the order of all; first is above");
  svg.line(kLeft, order_top, kLeft, order_end, "grid");
  svg.line(kLeft, order_end, width - kRight, order_end, "grid");
  svg.text(kLeft - 4, order_top + 10, Anchor::end, "small", "first");
  svg.text(kLeft - 4, order_end, Anchor::end, "small", "last");
  const double thick = std::clamp(place_y(1) - place_y(0), 1.5, 8.0);
  std::map<int, std::string> marks;
  for (size_t b = 0; b < buckets.size(); ++b) {
    const double left = x(static_cast<double>(b)) + gap / 2, wide = std::max(column - gap, 1.5);
    for (const int place : buckets[b].places) {
      marks[buckets[b].kind] += fmt::format("M{} {}h{}v{}h-{}z", coordinate(left), coordinate(place_y(place)),
                                            coordinate(wide), coordinate(thick), coordinate(wide));
    }
  }
  for (const auto& [kind, shape] : marks) svg.path(shape, fmt::format("fill kind{}", kind % 7));
  for (const double bucket : ticks(0, static_cast<double>(buckets.size() - 1), width < 500 ? 4 : 8)) {
    if (bucket != std::floor(bucket)) continue;
    svg.text(x(bucket + 0.5), order_end + 13, Anchor::middle, "small", fmt::format("{:.0f}", bucket));
  }
  svg.text((kLeft + width - kRight) / 2, order_end + 28, Anchor::middle, "small",
           "bucket, in the order in which backward finishes");
  return svg.str();
}

}  // namespace gradtune::tuner
