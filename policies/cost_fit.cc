// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
#include "policies/cost_fit.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <map>
#include <tuple>
#include <utility>

namespace gradtune::policies {
namespace {

using core::Step;
using Kind = Step::Kind;
using Collective = std::pair<Kind, core::Level>;

// The network, and that inside a node.
size_t link_of(core::Level level) { return uses_network(level) ? 0 : 1; }

constexpr double kLeastByte = 0.8;  // of the prior's

double median(std::vector<double> values) {
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

// Samples of one x count as their median, as often as there are some; but those of sizes within a factor of two together
// no more often than kMostAlike times: a plan of many small buckets must not outvote a few large ones.
struct Heap {
  double x = 0, y = 0, weight = 0;
};
std::vector<Heap> heaps_of(std::vector<Point> points) {
  std::sort(points.begin(), points.end(), [](const Point& a, const Point& b) { return a.x < b.x; });
  std::vector<Heap> heaps;
  for (size_t begin = 0; begin < points.size();) {
    std::vector<double> ys;
    size_t end = begin;
    for (; end < points.size() && points[end].x == points[begin].x; ++end) ys.push_back(points[end].y);
    heaps.push_back({points[begin].x, std::max(median(ys), 1e-3), static_cast<double>(ys.size())});
    begin = end;
  }
  constexpr double kMostAlike = 8;
  std::map<int, double> alike;
  const auto octave = [](const Heap& heap) { return heap.x >= 1 ? std::ilogb(heap.x) : -1; };
  for (const Heap& heap : heaps) alike[octave(heap)] += heap.weight;
  for (Heap& heap : heaps) heap.weight *= std::min(1.0, kMostAlike / alike[octave(heap)]);
  return heaps;
}

double relative_error(const Line& line, const std::vector<Heap>& heaps) {
  double sum = 0;
  for (const Heap& heap : heaps) sum += heap.weight * std::abs(line.fixed + line.unit * heap.x - heap.y) / heap.y;
  return sum;
}

RateQuality quality_of(const Line& line, const std::vector<Point>& points) {
  std::vector<double> errors;
  for (const Point& point : points) {
    const double fitted = std::max(line.fixed + line.unit * point.x, 1e-3);
    errors.push_back(std::abs(point.y - fitted) / fitted);
  }
  return {static_cast<int>(points.size()), median(errors)};
}

// A collective that ran: what it had to move, the time that it had a link for itself, and the step of the job.
struct Message {
  Point point;
  size_t step = 0;
};
std::vector<Point> points_of(const std::vector<Message>& messages) {
  std::vector<Point> points;
  for (const Message& message : messages) points.push_back(message.point);
  return points;
}

// Whether such a message tells of what is fixed.
bool is_short(const Line& line, const Point& point) {
  constexpr double kShare = 0.2;
  return line.fixed >= kShare * (line.fixed + line.unit * point.x);
}

// By how much messages take longer than their line on average. A line goes through medians, but of many messages in a
// row some stall (a thread that is not woken at once), and all of them together take the mean of each. Told by messages
// that are short: of long ones it is lost in their noise. What all messages of a step have in common does not count:
// then a peer was late, and the whole step waits for that once.
class Jitter {
 public:
  void add(const Line& line, const std::vector<Message>& messages) {
    for (const Message& message : messages) {
      const double fitted_us = line.fixed + line.unit * message.point.x;
      if (is_short(line, message.point)) late_us_[message.step].push_back(message.point.y - fitted_us);
    }
  }

  double mean_us() const {
    constexpr size_t kEnough = 3;  // messages of a step, to tell what they have in common
    constexpr double kLongestUs = 5000;
    double sum_us = 0;
    size_t count = 0;
    for (const auto& [step, late_us] : late_us_) {
      if (late_us.size() < kEnough) continue;
      const double common_us = std::max(median(late_us), 0.0);
      for (const double us : late_us) sum_us += std::min(us - common_us, kLongestUs);
      count += late_us.size();
    }
    return count > 0 ? std::max(sum_us / static_cast<double>(count), 0.0) : 0;
  }

 private:
  std::map<size_t, std::vector<double>> late_us_;
};

// What every kind of rate was seen to take.
struct Samples {
  struct Codec {
    std::vector<Point> encode, decode;
  };
  size_t steps = 0;
  std::map<Collective, std::vector<Message>> collectives;
  std::vector<std::pair<std::pair<core::CompressorSpec, core::Place>, Codec>> codecs;
  std::vector<Point> scale;

  Codec& codec(const core::CompressorSpec& spec, core::Place place) {
    for (auto& [key, codec] : codecs) {
      if (key.first == spec && key.second == place) return codec;
    }
    codecs.push_back({{spec, place}, {}});
    return codecs.back().second;
  }
};

// The time that each collective had a link for itself, where those that are under way together share it evenly; and for
// how long one of more bytes was under way too.
struct Share {
  double us = 0, beside_larger_us = 0;
};
std::vector<Share> shares_of(const std::vector<TimedStep>& steps, const std::vector<double>& bytes,
                             const core::Strategy& strategy) {
  const auto link = [&](const TimedStep& timed) {
    const core::Bucket& bucket = strategy.buckets[static_cast<size_t>(timed.bucket)];
    return link_of(bucket.option.steps[static_cast<size_t>(timed.step)].level);
  };
  std::vector<double> moments_us;
  for (const TimedStep& step : steps) {
    moments_us.push_back(step.begin_us);
    moments_us.push_back(step.end_us);
  }
  std::sort(moments_us.begin(), moments_us.end());
  std::vector<Share> shares(steps.size());
  for (size_t m = 1; m < moments_us.size(); ++m) {
    const double begin_us = moments_us[m - 1], end_us = moments_us[m];
    const auto is_under_way = [&](const TimedStep& step) { return step.begin_us <= begin_us && end_us <= step.end_us; };
    struct Sharers {
      int count = 0;
      double most_bytes = 0;
    };
    std::array<Sharers, 2> sharers{};
    for (size_t s = 0; s < steps.size(); ++s) {
      if (!is_under_way(steps[s])) continue;
      Sharers& of_link = sharers[link(steps[s])];
      ++of_link.count;
      of_link.most_bytes = std::max(of_link.most_bytes, bytes[s]);
    }
    for (size_t s = 0; s < steps.size(); ++s) {
      if (!is_under_way(steps[s])) continue;
      const Sharers& of_link = sharers[link(steps[s])];
      shares[s].us += (end_us - begin_us) / of_link.count;
      if (of_link.most_bytes > bytes[s]) shares[s].beside_larger_us += end_us - begin_us;
    }
  }
  return shares;
}

void charge_link(const std::vector<TimedStep>& steps, const core::Strategy& strategy,
                 const std::vector<std::vector<StepSize>>& sizes, const Ranks& ranks, Samples& samples) {
  const auto step_of = [&](const TimedStep& timed) -> const Step& {
    return strategy.buckets[static_cast<size_t>(timed.bucket)].option.steps[static_cast<size_t>(timed.step)];
  };
  std::vector<double> bytes;
  for (const TimedStep& timed : steps) {
    const StepSize& size = sizes[static_cast<size_t>(timed.bucket)][static_cast<size_t>(timed.step)];
    const Step& step = step_of(timed);
    bytes.push_back(static_cast<double>(size.sharers * core::link_bytes(step.kind, size.bytes, ranks.of(step.level))));
  }
  const std::vector<Share> shares = shares_of(steps, bytes, strategy);
  for (size_t s = 0; s < steps.size(); ++s) {
    // What had to pass through the queue of a larger one says nothing of its own cost.
    const double us = steps[s].end_us - steps[s].begin_us;
    if (shares[s].beside_larger_us > us / 2) continue;
    samples.collectives[{step_of(steps[s]).kind, step_of(steps[s]).level}].push_back(
        {{bytes[s], shares[s].us}, samples.steps});
  }
  ++samples.steps;
}

void take(const TimedStrategy& timed, const core::GradientTable& table, const Ranks& ranks,
          const std::vector<core::CompressorTraits>& known, Samples& samples) {
  std::vector<std::vector<StepSize>> sizes;
  for (const core::Bucket& bucket : timed.strategy.buckets) {
    const std::vector<core::Matrix> matrices = core::matrices_of(bucket, table);
    sizes.push_back(step_sizes(bucket.option, {core::numel(bucket), matrices}, ranks, known));
  }
  std::vector<TimedStep> collectives;
  for (const TimedStep& each : timed.steps) {
    const core::Bucket& bucket = timed.strategy.buckets[static_cast<size_t>(each.bucket)];
    const double us = each.end_us - each.begin_us;
    if (each.step < 0) {
      samples.scale.push_back({static_cast<double>(core::numel(bucket)), us});
      continue;
    }
    const Step& step = bucket.option.steps[static_cast<size_t>(each.step)];
    const StepSize& size = sizes[static_cast<size_t>(each.bucket)][static_cast<size_t>(each.step)];
    if (core::is_collective(step.kind)) {
      collectives.push_back(each);
      continue;
    }
    Samples::Codec& codec = samples.codec(bucket.option.codecs[step.codec], step.place);
    if (step.kind == Kind::encode) {
      codec.encode.push_back({static_cast<double>(size.elements), us});
    } else {
      codec.decode.push_back({static_cast<double>(4 * size.elements + size.bytes), us});
    }
  }
  charge_link(collectives, timed.strategy, sizes, ranks, samples);
}

int steps_of(const Collective& collective, const Ranks& ranks) {
  return std::max(core::messages(collective.first, ranks.of(collective.second)), 1);
}

Line line_of(const std::vector<Point>& points, const CollectiveRate* expected, int steps) {
  if (expected == nullptr) return fit_line(points);
  return fit_line(points, steps * expected->message_us, kLeastByte * expected->byte_us);
}

// The least that one message takes on the network and inside a node, of the collectives of which enough short ones were
// seen; 0 where there is none. It holds for the others too: a link is as far for all of them.
std::array<double, 2> latencies_us(const Samples& samples, const CostTable& prior, const Ranks& ranks) {
  constexpr std::ptrdiff_t kEnough = 6;
  std::array<double, 2> least_us{};
  for (const auto& [key, messages] : samples.collectives) {
    if (messages.empty()) continue;
    const std::vector<Point> points = points_of(messages);
    const int steps = steps_of(key, ranks);
    const Line line = line_of(points, find_rate(prior, key.first, key.second), steps);
    const auto are_short = [&](const Point& point) { return is_short(line, point); };
    if (std::ranges::count_if(points, are_short) < kEnough) continue;
    double& us = least_us[link_of(key.second)];
    us = us > 0 ? std::min(us, line.fixed / steps) : line.fixed / steps;
  }
  return least_us;
}

}  // namespace

Line fit_line(std::vector<Point> points, double expected_fixed, double least_unit) {
  if (points.empty()) return {};
  const std::vector<Heap> heaps = heaps_of(std::move(points));
  if (heaps.size() == 1) {
    const auto& [x, y, weight] = heaps[0];
    const double fixed = std::min(expected_fixed, y / 2);
    return x > 0 ? Line{fixed, std::max((y - fixed) / x, least_unit)} : Line{y, least_unit};
  }
  Line best{expected_fixed, least_unit};
  double least = std::numeric_limits<double>::infinity();
  const auto consider = [&](const Line& line) {
    if (line.fixed < 0 || line.unit < least_unit) return;
    double error = relative_error(line, heaps);
    if (expected_fixed > 0) error += std::min(1.0, std::abs(line.fixed - expected_fixed) / expected_fixed);
    if (error < least) {
      least = error;
      best = line;
    }
  };
  for (size_t a = 0; a < heaps.size(); ++a) {
    consider({heaps[a].y - least_unit * heaps[a].x, least_unit});
    if (heaps[a].x > 0) {
      consider({0, heaps[a].y / heaps[a].x});
      consider({expected_fixed, (heaps[a].y - expected_fixed) / heaps[a].x});
    }
    for (size_t b = a + 1; b < heaps.size(); ++b) {
      const double unit = (heaps[b].y - heaps[a].y) / (heaps[b].x - heaps[a].x);
      consider({heaps[a].y - unit * heaps[a].x, unit});
    }
  }
  return best;
}

double RateQuality::standard_error() const {
  // Of a median: 1.25 sigma / sqrt(n); sigma is 1.48 times the median deviation.
  return samples > 0 ? 1.85 * error / std::sqrt(samples) : 0;
}

FittedCost fit_cost(std::span<const TimedStrategy> timed, const core::GradientTable& table, const Ranks& ranks,
                    const std::vector<core::CompressorTraits>& known, const CostTable& prior) {
  Samples samples;
  for (const TimedStrategy& each : timed) take(each, table, ranks, known, samples);
  const std::array<double, 2> latency_us = latencies_us(samples, prior, ranks);
  Jitter jitter;
  FittedCost fitted{.table = {.ranks = ranks}, .collectives = {}, .codecs = {}};
  for (const CollectiveRate& rate : prior.collectives) samples.collectives[{rate.kind, rate.level}];
  for (const auto& [key, messages] : samples.collectives) {
    const std::vector<Point> points = points_of(messages);
    const auto& [kind, level] = key;
    std::optional<CollectiveRate> expected;
    if (const CollectiveRate* rate = find_rate(prior, kind, level)) expected = *rate;
    if (expected) expected->message_us = std::max(expected->message_us, latency_us[link_of(level)]);
    const int steps = steps_of(key, ranks);
    if (points.empty()) {
      fitted.table.collectives.push_back(*expected);
      fitted.collectives.emplace_back();
      continue;
    }
    const Line line = line_of(points, expected ? &*expected : nullptr, steps);
    jitter.add(line, messages);
    fitted.table.collectives.push_back({kind, level, line.fixed / steps, line.unit});
    fitted.collectives.push_back(quality_of(line, points));
  }
  for (CollectiveRate& rate : fitted.table.collectives) {
    rate.message_us += jitter.mean_us() / std::max(core::messages(rate.kind, ranks.of(rate.level)), 1);
  }
  for (const CodecRate& rate : prior.codecs) samples.codec(rate.codec, rate.place);
  for (const auto& [key, codec] : samples.codecs) {
    const CodecRate* expected = find_rate(prior, key.first, key.second);
    if (expected == nullptr && (codec.encode.empty() || codec.decode.empty())) continue;
    CodecRate rate = expected == nullptr ? CodecRate{.codec = key.first, .place = key.second} : *expected;
    RateQuality quality{.samples = 0, .error = 0};
    if (!codec.encode.empty()) {
      const Line line = fit_line(codec.encode, rate.encode_us);
      std::tie(rate.encode_us, rate.encode_element_us) = std::pair(line.fixed, line.unit);
      quality = quality_of(line, codec.encode);
    }
    if (!codec.decode.empty()) {
      const Line line = fit_line(codec.decode, rate.decode_us);
      std::tie(rate.decode_us, rate.decode_element_us, rate.decode_byte_us) =
          std::tuple(line.fixed, 4 * line.unit, line.unit);
      const RateQuality of_decode = quality_of(line, codec.decode);
      quality = {quality.samples + of_decode.samples, std::max(quality.error, of_decode.error)};
    }
    fitted.table.codecs.push_back(rate);
    fitted.codecs.push_back(codec.encode.empty() || codec.decode.empty() ? RateQuality() : quality);
  }
  const Line scale = fit_line(samples.scale, prior.scale_us);
  fitted.table.scale_us = scale.fixed;
  fitted.table.scale_element_us = scale.unit;
  return fitted;
}

std::optional<CostTable> prior_cost(const CostTable& seen, const std::vector<core::CompressorSpec>& codecs) {
  constexpr double kOperationUs = 5, kMessageUs = 30;
  constexpr double kElementUs = 2.5e-4;     // 16 GB/s
  constexpr double kInsideByteUs = 2.5e-4;  // 4 GB/s
  const CollectiveRate* summed = find_rate(seen, Kind::all_reduce, core::Level::flat);
  if (summed == nullptr) return {};
  const double message_us = summed->message_us > 0 ? std::min(summed->message_us, kMessageUs) : kMessageUs;
  CostTable prior{.ranks = seen.ranks, .scale_us = kOperationUs};
  for (const Kind kind : {Kind::all_reduce, Kind::reduce_scatter, Kind::all_gather, Kind::all_to_all}) {
    prior.collectives.push_back({kind, core::Level::flat, message_us, summed->byte_us});
  }
  if (seen.ranks.has_levels()) {
    for (const Kind kind : {Kind::all_reduce, Kind::reduce_scatter, Kind::all_gather, Kind::all_to_all}) {
      prior.collectives.push_back({kind, core::Level::inter, message_us, summed->byte_us});
    }
    for (const Kind kind : {Kind::reduce_scatter, Kind::all_gather, Kind::reduce, Kind::broadcast}) {
      prior.collectives.push_back({kind, core::Level::intra, message_us, std::min(summed->byte_us, kInsideByteUs)});
    }
  }
  const double element_us = seen.scale_element_us > 0 ? seen.scale_element_us / 2 : kElementUs;
  for (const core::CompressorSpec& codec : codecs) {
    for (const core::Place place : {core::Place::device, core::Place::host}) {
      prior.codecs.push_back({codec, place, kOperationUs, element_us, kOperationUs, element_us, element_us / 4});
    }
  }
  return prior;
}

CostTable shifted(const FittedCost& fitted, double errors) {
  CostTable table = fitted.table;
  const auto factor = [&](const RateQuality& quality) { return std::max(0.5, 1 + errors * quality.standard_error()); };
  for (size_t c = 0; c < table.collectives.size(); ++c) {
    table.collectives[c].message_us *= factor(fitted.collectives[c]);
    table.collectives[c].byte_us *= factor(fitted.collectives[c]);
  }
  for (size_t c = 0; c < table.codecs.size(); ++c) {
    CodecRate& rate = table.codecs[c];
    for (double* us :
         {&rate.encode_us, &rate.encode_element_us, &rate.decode_us, &rate.decode_element_us, &rate.decode_byte_us}) {
      *us *= factor(fitted.codecs[c]);
    }
  }
  return table;
}

}  // namespace gradtune::policies
