// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
#include "policies/cost_fit.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <functional>
#include <iterator>
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

double median(std::vector<double> values) {
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

// Samples of one x count as their quantile, as often as there are some; but those of sizes within a factor of two
// together no more often than kMostAlike times: a plan of many small buckets must not outvote a few large ones.
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

// Collectives that are under way together delay each other, in whatever way the link divides itself among them; what
// all of them take is the same in any way. So a link is looked at in periods, in each of which it always had something
// to do, and a period is divided among its messages in proportion to what these take alone.
struct Message {
  Collective collective;
  double bytes = 0;  // on the link
  size_t step = 0;   // of the job
  double share_us = 0;
  bool tells = true;  // of its own cost
};
struct Period {
  double us = 0;
  std::vector<size_t> messages = {};
};
struct Traffic {
  size_t steps = 0;
  std::vector<Message> messages;
  std::vector<Period> periods;
};

// Microseconds of messages that have the link for themselves, as far as it is known.
using Lines = std::map<Collective, Line>;

// Messages in a period most of which is for much larger ones do not tell of their own cost.
void divide(const Lines& lines, Traffic& traffic) {
  constexpr double kMuchLarger = 2;
  const auto share_us = [&](size_t m) -> double& { return traffic.messages[m].share_us; };
  for (Period& period : traffic.periods) {
    double sum_us = 0;
    for (const size_t m : period.messages) {
      const Line& line = lines.at(traffic.messages[m].collective);
      share_us(m) = std::max(line.fixed + line.unit * traffic.messages[m].bytes, 1e-3);
      sum_us += share_us(m);
    }
    std::ranges::sort(period.messages, std::greater(), share_us);
    double larger_us = 0;
    auto larger = period.messages.begin();
    for (const size_t m : period.messages) {
      while (share_us(*larger) > kMuchLarger * share_us(m)) larger_us += share_us(*larger++);
      traffic.messages[m].tells = larger_us <= sum_us / 2;
    }
    for (const size_t m : period.messages) share_us(m) *= period.us / sum_us;
  }
}

// Of one kind, those that tell.
std::vector<Message> telling(const Collective& collective, const Traffic& traffic) {
  std::vector<Message> all;
  std::ranges::copy_if(traffic.messages, std::back_inserter(all),
                       [&](const Message& message) { return message.tells && message.collective == collective; });
  return all;
}

std::vector<Point> points_of(const std::vector<Message>& messages) {
  std::vector<Point> points;
  for (const Message& message : messages) points.push_back({message.bytes, message.share_us});
  return points;
}

// Whether a line tells there of what is fixed.
bool is_short(double fixed_us, double all_us) {
  constexpr double kShare = 0.2;
  return fixed_us >= kShare * all_us;
}
bool is_short(const Line& line, const Message& message) {
  return is_short(line.fixed, line.fixed + line.unit * message.bytes);
}

// By how much a message takes longer than its line on average. A line goes through what is usual, but of many messages
// in a row some stall (a thread that is not woken at once), and all of them together take the mean of each. Told by
// periods of short messages: in those of long ones it is lost in their noise. What all periods of a step have in common
// does not count: then a peer was late, and the whole step waits for that once.
double mean_stall_us(const Lines& lines, const Traffic& traffic) {
  constexpr size_t kEnough = 3;  // periods of a step, to tell what they have in common
  constexpr double kLongestUs = 5000;
  std::map<size_t, std::vector<double>> late_us;  // of each step
  size_t messages = 0;
  for (const Period& period : traffic.periods) {
    double fixed_us = 0, all_us = 0;
    for (const size_t m : period.messages) {
      const Line& line = lines.at(traffic.messages[m].collective);
      fixed_us += line.fixed;
      all_us += line.fixed + line.unit * traffic.messages[m].bytes;
    }
    if (!is_short(fixed_us, all_us)) continue;
    late_us[traffic.messages[period.messages[0]].step].push_back(period.us - all_us);
    messages += period.messages.size();
  }
  double sum_us = 0;
  for (const auto& [step, periods_us] : late_us) {
    const double common_us = periods_us.size() < kEnough ? 0 : std::max(median(periods_us), 0.0);
    for (const double us : periods_us) sum_us += std::min(us - common_us, kLongestUs);
  }
  return messages > 0 ? std::max(sum_us / static_cast<double>(messages), 0.0) : 0;
}

// What every kind of rate was seen to take.
struct Samples {
  struct Codec {
    std::vector<Point> encode, decode;
  };
  Traffic traffic;
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

// The messages of a step, and the periods of both links.
void take_messages(const std::vector<TimedStep>& steps, const core::Strategy& strategy,
                   const std::vector<std::vector<StepSize>>& sizes, const Ranks& ranks, Traffic& traffic) {
  std::vector<TimedStep> by_begin = steps;
  std::ranges::stable_sort(by_begin, {}, &TimedStep::begin_us);
  std::array<double, 2> until_us{};
  std::array<std::optional<size_t>, 2> period{};
  for (const TimedStep& timed : by_begin) {
    const auto b = static_cast<size_t>(timed.bucket), s = static_cast<size_t>(timed.step);
    const Step& step = strategy.buckets[b].option.steps[s];
    const StepSize& size = sizes[b][s];
    const size_t link = link_of(step.level);
    if (!period[link] || timed.begin_us >= until_us[link]) {
      period[link] = traffic.periods.size();
      traffic.periods.emplace_back();
      until_us[link] = timed.begin_us;
    }
    const double end_us = std::max(until_us[link], timed.end_us);
    traffic.periods[*period[link]].us += end_us - until_us[link];
    traffic.periods[*period[link]].messages.push_back(traffic.messages.size());
    until_us[link] = end_us;
    const int64_t bytes = size.sharers * core::link_bytes(step.kind, size.bytes, ranks.of(step.level));
    traffic.messages.push_back({{step.kind, step.level}, static_cast<double>(bytes), traffic.steps});
  }
  ++traffic.steps;
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
  take_messages(collectives, timed.strategy, sizes, ranks, samples.traffic);
}

int steps_of(const Collective& collective, const Ranks& ranks) {
  return std::max(core::messages(collective.first, ranks.of(collective.second)), 1);
}

// A collective that waits for a peer takes longer, and none takes less than it needs: what is usual is less than the
// median. A byte is expected to cost what it does in the largest message of any kind: where those of one kind are much
// smaller, they do not tell what large ones would take.
Line line_of(const std::vector<Point>& points, const CollectiveRate* expected, int steps, double most_bytes) {
  constexpr double kUsual = 0.35;
  if (expected == nullptr) return fit_line(points, {.quantile = kUsual});
  const double fixed_us = steps * expected->message_us;
  if (points.empty()) return {fixed_us, expected->byte_us};
  const double seen_bytes = std::ranges::max_element(points, {}, &Point::x)->x;
  const Point far{most_bytes, fixed_us + expected->byte_us * most_bytes};
  return fit_line(points, {.expected_fixed = fixed_us,
                           .expected_far = seen_bytes < most_bytes / 2 ? std::optional(far) : std::nullopt,
                           .quantile = kUsual});
}

// The least that one message takes on the network and inside a node, of the collectives of which enough short ones were
// seen; 0 where there is none. It holds for the others too: a link is as far for all of them.
std::array<double, 2> latencies_us(const Lines& lines, const Traffic& traffic, const Ranks& ranks) {
  constexpr std::ptrdiff_t kEnough = 6;
  std::array<double, 2> least_us{};
  for (const auto& [collective, line] : lines) {
    const auto is_such = [&](const Message& message) { return is_short(line, message); };
    if (std::ranges::count_if(telling(collective, traffic), is_such) < kEnough) continue;
    double& us = least_us[link_of(collective.second)];
    const double one_us = line.fixed / steps_of(collective, ranks);
    us = us > 0 ? std::min(us, one_us) : one_us;
  }
  return least_us;
}

// What each kind takes alone follows from how periods are divided, and that from what it takes: from what is expected
// on, or else by bytes, a few times.
Lines fit_links(const CostTable& prior, const Ranks& ranks, Traffic& traffic) {
  constexpr int kPasses = 6;
  Lines lines;
  for (const CollectiveRate& rate : prior.collectives) {
    lines[{rate.kind, rate.level}] = line_of({}, &rate, steps_of({rate.kind, rate.level}, ranks), 0);
  }
  const Line by_bytes{.fixed = 0, .unit = prior.collectives.empty() ? 1 : prior.collectives[0].byte_us};
  for (const Message& message : traffic.messages) lines.try_emplace(message.collective, by_bytes);
  std::array<double, 2> most_bytes{}, latency_us{};
  for (const Message& message : traffic.messages) {
    double& most = most_bytes[link_of(message.collective.second)];
    most = std::max(most, message.bytes);
  }
  for (int pass = 0; pass < kPasses; ++pass) {
    divide(lines, traffic);
    for (auto& [collective, line] : lines) {
      std::optional<CollectiveRate> expected;
      if (const CollectiveRate* rate = find_rate(prior, collective.first, collective.second)) expected = *rate;
      if (expected) expected->message_us = std::max(expected->message_us, latency_us[link_of(collective.second)]);
      line = line_of(points_of(telling(collective, traffic)), expected ? &*expected : nullptr,
                     steps_of(collective, ranks), most_bytes[link_of(collective.second)]);
    }
    latency_us = latencies_us(lines, traffic, ranks);
  }
  return lines;
}

}  // namespace

Line fit_line(std::vector<Point> points, const LineFit& how) {
  constexpr double kFarWeight = 4, kMostOff = 3;
  const double expected_fixed = how.expected_fixed;
  if (points.empty()) return {};
  std::vector<Heap> heaps = heaps_of(std::move(points), how.quantile);
  if (how.expected_far) heaps.push_back({how.expected_far->x, how.expected_far->y, kFarWeight});
  if (heaps.size() == 1) {
    const auto& [x, y, weight] = heaps[0];
    const double fixed = std::min(expected_fixed, y / 2);
    return x > 0 ? Line{fixed, (y - fixed) / x} : Line{y, 0};
  }
  Line best{expected_fixed, 0};
  double least = std::numeric_limits<double>::infinity();
  const auto consider = [&](const Line& line) {
    if (line.fixed < 0 || line.unit < 0) return;
    double error = relative_error(line, heaps);
    if (expected_fixed > 0) error += std::min(std::abs(std::log(line.fixed / expected_fixed)), kMostOff);
    if (error < least) {
      least = error;
      best = line;
    }
  };
  for (size_t a = 0; a < heaps.size(); ++a) {
    consider({heaps[a].y, 0});
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
  FittedCost fitted{.table = {.ranks = ranks}, .collectives = {}, .codecs = {}};
  const Lines lines = fit_links(prior, ranks, samples.traffic);
  const double stall_us = mean_stall_us(lines, samples.traffic);
  for (const auto& [collective, line] : lines) {
    const std::vector<Message> messages = telling(collective, samples.traffic);
    const auto& [kind, level] = collective;
    if (messages.empty() && find_rate(prior, kind, level) == nullptr) continue;
    const double message_us = (line.fixed + stall_us) / steps_of(collective, ranks);
    fitted.table.collectives.push_back({kind, level, message_us, line.unit});
    fitted.collectives.push_back(messages.empty() ? RateQuality() : quality_of(line, points_of(messages)));
  }
  for (const CodecRate& rate : prior.codecs) samples.codec(rate.codec, rate.place);
  for (const auto& [key, codec] : samples.codecs) {
    const CodecRate* expected = find_rate(prior, key.first, key.second);
    if (expected == nullptr && (codec.encode.empty() || codec.decode.empty())) continue;
    CodecRate rate = expected == nullptr ? CodecRate{.codec = key.first, .place = key.second} : *expected;
    RateQuality quality{.samples = 0, .error = 0};
    if (!codec.encode.empty()) {
      const Line line = fit_line(codec.encode, {.expected_fixed = rate.encode_us});
      std::tie(rate.encode_us, rate.encode_element_us) = std::pair(line.fixed, line.unit);
      quality = quality_of(line, codec.encode);
    }
    if (!codec.decode.empty()) {
      const Line line = fit_line(codec.decode, {.expected_fixed = rate.decode_us});
      std::tie(rate.decode_us, rate.decode_element_us, rate.decode_byte_us) =
          std::tuple(line.fixed, 4 * line.unit, line.unit);
      const RateQuality of_decode = quality_of(line, codec.decode);
      quality = {quality.samples + of_decode.samples, std::max(quality.error, of_decode.error)};
    }
    fitted.table.codecs.push_back(rate);
    fitted.codecs.push_back(codec.encode.empty() || codec.decode.empty() ? RateQuality() : quality);
  }
  const Line scale = fit_line(samples.scale, {.expected_fixed = prior.scale_us});
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
