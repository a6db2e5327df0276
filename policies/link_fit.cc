// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
#include "policies/link_fit.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <functional>
#include <iterator>
#include <map>
#include <optional>
#include <utility>

namespace gradtune::policies {
namespace {

using Collective = std::pair<core::Step::Kind, core::Level>;

// The network, and that inside a node.
size_t link_of(core::Level level) { return uses_network(level) ? 0 : 1; }

// Collectives that are under way together delay each other, in whatever way the link divides itself among them; what
// all of them take is the same in any way. So a link is looked at in periods, in each of which it always had something
// to do, and a period is divided among its messages in proportion to what these take alone.
struct Message {
  Collective collective;
  double bytes = 0;
  size_t step = 0;
  double share_us = 0;
  bool tells = true;  // of its own cost
};
struct Period {
  double us = 0;
  std::vector<size_t> messages = {};
};
struct Traffic {
  std::vector<Message> messages = {};
  std::vector<Period> periods = {};
};

// The messages of a step, and the periods of both links.
void take(std::vector<TimedMessage> timed, size_t step, Traffic& traffic) {
  std::ranges::stable_sort(timed, {}, &TimedMessage::begin_us);
  std::array<double, 2> until_us{};
  std::array<std::optional<size_t>, 2> period{};
  for (const TimedMessage& each : timed) {
    const size_t link = link_of(each.level);
    if (!period[link] || each.begin_us >= until_us[link]) {
      period[link] = traffic.periods.size();
      traffic.periods.emplace_back();
      until_us[link] = each.begin_us;
    }
    const double end_us = std::max(until_us[link], each.end_us);
    traffic.periods[*period[link]].us += end_us - until_us[link];
    traffic.periods[*period[link]].messages.push_back(traffic.messages.size());
    until_us[link] = end_us;
    traffic.messages.push_back({{each.kind, each.level}, each.link_bytes, step});
  }
}

// Microseconds of messages that have the link for themselves, as far as it is known.
using Lines = std::map<Collective, Line>;

// Messages in a period most of which is for much larger ones do not tell of their own cost.
void divide(const Lines& lines, Traffic& traffic) {
  constexpr double kMuchLarger = 2;
  const auto share_us = [&](size_t m) -> double& { return traffic.messages[m].share_us; };
  for (Period& period : traffic.periods) {
    double sum_us = 0;
    for (const size_t m : period.messages) {
      share_us(m) = std::max(lines.at(traffic.messages[m].collective).at(traffic.messages[m].bytes), 1e-3);
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
bool is_short(const Line& line, const Message& message) { return is_short(line.fixed, line.at(message.bytes)); }

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
      all_us += line.at(traffic.messages[m].bytes);
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
Lines lines_of(const CostTable& prior, const Ranks& ranks, Traffic& traffic) {
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

std::vector<FittedCollective> fit_links(const std::vector<std::vector<TimedMessage>>& steps, const Ranks& ranks,
                                        const CostTable& prior) {
  Traffic traffic;
  for (size_t step = 0; step < steps.size(); ++step) take(steps[step], step, traffic);
  const Lines lines = lines_of(prior, ranks, traffic);
  const double stall_us = mean_stall_us(lines, traffic);
  std::vector<FittedCollective> fitted;
  for (const auto& [collective, line] : lines) {
    const std::vector<Message> messages = telling(collective, traffic);
    const auto& [kind, level] = collective;
    if (messages.empty() && find_rate(prior, kind, level) == nullptr) continue;
    const double message_us = (line.fixed + stall_us) / steps_of(collective, ranks);
    fitted.push_back({.rate = {kind, level, message_us, line.unit},
                      .quality = messages.empty() ? RateQuality() : quality_of(line, points_of(messages))});
  }
  return fitted;
}

}  // namespace gradtune::policies
