// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
#include "policies/cost/link_fit.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <functional>
#include <iterator>
#include <limits>
#include <map>
#include <optional>
#include <utility>

#include "engine/core/median.h"

namespace gradtune::policies {
namespace {

using Collective = std::pair<core::Step::Kind, core::Level>;

// A collective that waits for a peer takes longer, and none takes less than it needs, so the usual value is below
// the median.
constexpr double kUsual = 0.35;
double usual(std::vector<double> values) {
  const auto place = values.begin() + static_cast<std::ptrdiff_t>(kUsual * static_cast<double>(values.size()));
  std::nth_element(values.begin(), place, values.end());
  return *place;
}

// 0 for the network, 1 for the link inside a node.
size_t link_of(core::Level level) { return uses_network(level) ? 0 : 1; }

// Collectives in flight together delay each other, depending on how the link divides itself among them; their total
// time does not depend on that. So a link is observed in periods in which something was in flight all the time. A
// period is divided among its messages in proportion to their times alone.
struct Message {
  Collective collective;
  double bytes = 0, us = 0;
  size_t step = 0;
  double share_us = 0;
  bool tells = true;  // false if it says nothing about its own cost
};
struct Period {
  double us = 0;
  double under_way_us = 0;            // sum over all its messages
  std::vector<size_t> messages = {};  // in the order in which they began

  double at_once() const { return std::max(under_way_us / std::max(us, 1e-3), 1.0); }
};
struct Traffic {
  std::vector<Message> messages = {};
  std::vector<Period> periods = {};
};

// Adds the messages of a step, and the periods of both links.
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
    Period& of = traffic.periods[*period[link]];
    of.us += end_us - until_us[link];
    of.under_way_us += each.end_us - each.begin_us;
    of.messages.push_back(traffic.messages.size());
    until_us[link] = end_us;
    traffic.messages.push_back({{each.kind, each.level}, each.link_bytes, each.end_us - each.begin_us, step});
  }
}

// The number of messages that travel one after another: the collective takes this many message times if the link is
// not busy with others. A group of one has none.
int travels_of(const Collective& collective, const core::Ranks& ranks) {
  return std::max(core::travels(collective.first, ranks.of(collective.second)), 1);
}

// The links, as far as they are known.
struct Links {
  core::Ranks ranks = {};
  std::map<Collective, Line> lines = {};  // us of a collective that has the link for itself
  std::array<double, 2> travel_us = {};   // for each link: the part of one message in which others may use the link

  double wait_us(const Collective& collective) const {
    return std::min(travels_of(collective, ranks) * travel_us[link_of(collective.second)], lines.at(collective).fixed);
  }
};

// The expected length of a period. Messages are handled one after another, the link carries their bytes one after
// another, and the last ones have to arrive. If all messages only wait, as many wait at a time as were in flight
// (Little's law).
double expected_us(const Links& links, const Traffic& traffic, const Period& period) {
  double handled_us = 0, carried_us = 0, end_us = 0, all_us = 0;
  for (const size_t m : period.messages) {
    const Message& message = traffic.messages[m];
    const Line& line = links.lines.at(message.collective);
    const double us = std::max(line.at(message.bytes), 1e-3);
    const double wait_us = links.wait_us(message.collective);
    all_us += us;
    handled_us += line.fixed - wait_us;
    carried_us = std::max(carried_us, handled_us) + line.unit * message.bytes;
    end_us = std::max(end_us, carried_us + wait_us);
  }
  return std::max({end_us, all_us / period.at_once(), 1e-3});
}

// A message says nothing about its own cost if most of its period belongs to much larger messages.
void divide(const Links& links, Traffic& traffic) {
  constexpr double kMuchLarger = 2;
  const auto share_us = [&](size_t m) -> double& { return traffic.messages[m].share_us; };
  for (Period& period : traffic.periods) {
    const double scale = period.us / expected_us(links, traffic, period);
    double sum_us = 0;
    for (const size_t m : period.messages) {
      share_us(m) = std::max(links.lines.at(traffic.messages[m].collective).at(traffic.messages[m].bytes), 1e-3);
      sum_us += share_us(m);
    }
    std::vector<size_t> by_share = period.messages;
    std::ranges::sort(by_share, std::greater(), share_us);
    double larger_us = 0;
    auto larger = by_share.begin();
    for (const size_t m : by_share) {
      while (share_us(*larger) > kMuchLarger * share_us(m)) larger_us += share_us(*larger++);
      traffic.messages[m].tells = larger_us <= sum_us / 2;
    }
    for (const size_t m : period.messages) share_us(m) *= scale;
  }
}

// The messages of one kind that say something about its cost.
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

// True if a line says something about the fixed part at this length.
bool is_short(double fixed_us, double all_us) {
  constexpr double kShare = 0.2;
  return fixed_us >= kShare * all_us;
}
bool is_short(const Line& line, const Message& message) { return is_short(line.fixed, line.at(message.bytes)); }

// The mean time by which a message takes longer than its line. A line follows the usual value, but some of many
// consecutive messages stall (for example because a thread is woken late), and their total time follows the mean.
// Only periods of short messages show this; in long ones the noise hides it. Delays that all periods of a step have
// in common do not count: then a peer was late, and the whole step waits for it once.
double mean_stall_us(const Links& links, const Traffic& traffic) {
  constexpr size_t kEnough = 3;  // periods of a step that show their common delay
  constexpr double kLongestUs = 5000;
  std::map<size_t, std::vector<double>> late_us;  // of each step
  size_t messages = 0;
  for (const Period& period : traffic.periods) {
    double fixed_us = 0, all_us = 0;
    for (const size_t m : period.messages) {
      const Line& line = links.lines.at(traffic.messages[m].collective);
      fixed_us += line.fixed;
      all_us += line.at(traffic.messages[m].bytes);
    }
    if (!is_short(fixed_us, all_us)) continue;
    late_us[traffic.messages[period.messages[0]].step].push_back(period.us - expected_us(links, traffic, period));
    messages += period.messages.size();
  }
  double sum_us = 0;
  for (const auto& [step, periods_us] : late_us) {
    const double common_us =
        periods_us.size() < kEnough ? 0 : std::max(core::median(periods_us, core::Middle::upper), 0.0);
    for (const double us : periods_us) sum_us += std::min(us - common_us, kLongestUs);
  }
  return messages > 0 ? std::max(sum_us / static_cast<double>(messages), 0.0) : 0;
}

// The expected cost of a byte is that in the largest message of any kind: a kind with much smaller messages does not
// show the cost of large ones.
Line line_of(const std::vector<Point>& points, const std::optional<Line>& expected, double most_bytes,
             double least_byte_us) {
  if (!expected) return fit_line(points, {.least_unit = least_byte_us, .quantile = kUsual});
  if (points.empty()) return {expected->fixed, std::max(expected->unit, least_byte_us)};
  const double seen_bytes = std::ranges::max_element(points, {}, &Point::x)->x;
  const Point far{most_bytes, expected->at(most_bytes)};
  return fit_line(points, {.expected_fixed = expected->fixed,
                           .least_unit = least_byte_us,
                           .expected_far = seen_bytes < most_bytes / 2 ? std::optional(far) : std::nullopt,
                           .quantile = kUsual});
}

// The least time for one message to arrive, on the network and inside a node, over collectives of which enough short
// ones were observed; 0 if there are none. It holds for all collectives, because a link has the same latency for
// each of them.
std::array<double, 2> latencies_us(const Links& links, const Traffic& traffic) {
  constexpr std::ptrdiff_t kEnough = 6;
  std::array<double, 2> least_us{};
  for (const auto& [collective, line] : links.lines) {
    const auto is_such = [&](const Message& message) { return is_short(line, message); };
    if (std::ranges::count_if(telling(collective, traffic), is_such) < kEnough) continue;
    double& us = least_us[link_of(collective.second)];
    const double one_us = line.fixed / travels_of(collective, links.ranks);
    us = us > 0 ? std::min(us, one_us) : one_us;
  }
  return least_us;
}

// For each link the shortest message. `times` gives the number of consecutive messages in a collective, by which its
// time is divided. No message travels longer.
std::array<double, 2> shortest_messages_us(const Traffic& traffic, const std::function<int(const Collective&)>& times) {
  std::array<double, 2> shortest_us;
  shortest_us.fill(std::numeric_limits<double>::infinity());
  for (const Message& message : traffic.messages) {
    double& least_us = shortest_us[link_of(message.collective.second)];
    least_us = std::min(least_us, message.us / times(message.collective));
  }
  return shortest_us;
}

// For each link nearly the least cost of a byte. It uses long periods with much traffic, less the time of their
// messages if each took as long as the shortest one. No kind of message is faster than that, even if its short
// messages say little.
std::array<double, 2> least_bytes_us(const Traffic& traffic) {
  constexpr double kLong = 0.25;    // share of the longest period
  constexpr double kNearly = 0.97;  // below 1, because kinds have different fixed parts
  struct Seen {
    double bytes = 0, us = 0;
  };
  const std::array<double, 2> shortest_us = shortest_messages_us(traffic, [](const Collective&) { return 1; });
  std::array<std::vector<Seen>, 2> seen;
  for (const Period& period : traffic.periods) {
    double bytes = 0;
    for (const size_t m : period.messages) bytes += traffic.messages[m].bytes;
    const size_t link = link_of(traffic.messages[period.messages[0]].collective.second);
    const double in_turn = static_cast<double>(period.messages.size()) / period.at_once();
    seen[link].push_back({bytes, std::max(period.us - in_turn * shortest_us[link], 0.0)});
  }
  std::array<double, 2> rates_us{};
  for (size_t link = 0; link < 2; ++link) {
    if (seen[link].empty()) continue;
    const double most_bytes = std::ranges::max(seen[link], {}, &Seen::bytes).bytes;
    std::vector<double> rates;
    for (const Seen& period : seen[link]) {
      if (period.bytes > 0 && period.bytes >= kLong * most_bytes) rates.push_back(period.us / period.bytes);
    }
    std::ranges::sort(rates);
    if (!rates.empty()) rates_us[link] = kNearly * rates[rates.size() / 4];
  }
  return rates_us;
}

Line line_of(const CollectiveRate& rate, int group) {
  return {rate.messages_us(group) + rate.travel_us(group), rate.byte_us};
}

// The expected lines: the prior's for its kinds; for other kinds a message costs only its bytes.
Links expected_links(const CostTable& prior, const core::Ranks& ranks, const Traffic& traffic) {
  Links links{.ranks = ranks};
  for (const CollectiveRate& rate : prior.collectives) {
    links.lines[{rate.kind, rate.level}] = line_of(rate, ranks.of(rate.level));
    double& travel_us = links.travel_us[link_of(rate.level)];
    travel_us = std::max(travel_us, rate.wait_us);
  }
  const Line by_bytes{.fixed = 0, .unit = prior.collectives.empty() ? 1 : prior.collectives[0].byte_us};
  for (const Message& message : traffic.messages) {
    const auto& [kind, level] = message.collective;
    const CollectiveRate* rate = find_rate(prior, kind, level);
    links.lines.try_emplace(message.collective, rate == nullptr ? by_bytes : line_of(*rate, ranks.of(level)));
  }
  return links;
}

// The lines of the kinds depend on the division of periods, which in turn depends on the lines. So both are computed
// alternately, a few times.
void fit_lines(const CostTable& prior, int passes, Traffic& traffic, Links& links) {
  std::array<double, 2> least_us = least_bytes_us(traffic);
  for (const CollectiveRate& rate : prior.collectives) {  // observed bytes may have been slow for their kind
    double& least = least_us[link_of(rate.level)];
    least = std::min(least, rate.byte_us);
  }
  std::array<double, 2> most_bytes{}, latency_us{};
  for (const Message& message : traffic.messages) {
    double& most = most_bytes[link_of(message.collective.second)];
    most = std::max(most, message.bytes);
  }
  for (int pass = 0; pass < passes; ++pass) {
    divide(links, traffic);
    for (auto& [collective, line] : links.lines) {
      const size_t link = link_of(collective.second);
      std::optional<Line> expected;
      if (const CollectiveRate* rate = find_rate(prior, collective.first, collective.second)) {
        expected = line_of(*rate, links.ranks.of(collective.second));
        expected->fixed = std::max(expected->fixed, travels_of(collective, links.ranks) * latency_us[link]);
      }
      line = line_of(points_of(telling(collective, traffic)), expected, most_bytes[link], least_us[link]);
    }
    latency_us = latencies_us(links, traffic);
  }
}

// The usual error of periods with one message plus that of periods with several.
double error_of(const Links& links, const Traffic& traffic, size_t link) {
  std::array<std::vector<double>, 2> errors;  // of one message, of several
  for (const Period& period : traffic.periods) {
    if (link_of(traffic.messages[period.messages[0]].collective.second) != link) continue;
    const double ratio = std::max(period.us, 1e-3) / expected_us(links, traffic, period);
    errors[period.messages.size() > 1 ? 1 : 0].push_back(std::abs(std::log(ratio)));
  }
  if (errors[1].empty()) return 0;  // no period of several messages was observed
  double sum = 0;
  for (std::vector<double>& each : errors) sum += each.empty() ? 0 : usual(std::move(each));
  return sum;
}

// Decides for how long a link is free while messages travel: the prior's value or, without one, never. Another value
// is used only if it explains the periods clearly better.
Links fit(const CostTable& prior, const core::Ranks& ranks, Traffic& traffic) {
  constexpr int kPasses = 6, kMorePasses = 3;
  constexpr double kClearly = 0.9, kWell = 0.02;
  Links best = expected_links(prior, ranks, traffic);
  fit_lines(prior, kPasses, traffic, best);
  const std::array<double, 2> shortest_us =
      shortest_messages_us(traffic, [&](const Collective& each) { return travels_of(each, ranks); });
  for (const size_t link : {size_t{0}, size_t{1}}) {
    double least = kClearly * error_of(best, traffic, link);
    for (const double share : {0.5, 1.0}) {
      if (least < kWell) break;  // there is nothing to explain
      Links links = best;
      links.travel_us[link] = share * shortest_us[link];
      fit_lines(prior, kMorePasses, traffic, links);
      const double error = error_of(links, traffic, link);
      if (error >= least) continue;
      least = error;
      best = std::move(links);
    }
  }
  divide(best, traffic);
  return best;
}

}  // namespace

std::vector<FittedCollective> fit_links(const std::vector<std::vector<TimedMessage>>& steps, const core::Ranks& ranks,
                                        const CostTable& prior) {
  Traffic traffic;
  for (size_t step = 0; step < steps.size(); ++step) take(steps[step], step, traffic);
  const Links links = fit(prior, ranks, traffic);
  const double stall_us = mean_stall_us(links, traffic);
  std::vector<FittedCollective> fitted;
  for (const auto& [collective, line] : links.lines) {
    const std::vector<Message> messages = telling(collective, traffic);
    const auto& [kind, level] = collective;
    if (messages.empty() && find_rate(prior, kind, level) == nullptr) continue;
    const double all_wait_us = links.wait_us(collective), wait_us = all_wait_us / travels_of(collective, ranks);
    const int times = std::max(core::messages(kind, ranks.of(level)), 1);
    fitted.push_back({.rate = {.kind = kind,
                               .level = level,
                               .message_us = (line.fixed + stall_us - all_wait_us) / times + wait_us,
                               .byte_us = line.unit,
                               .wait_us = wait_us},
                      .quality = messages.empty() ? RateQuality() : quality_of(line, points_of(messages))});
  }
  return fitted;
}

}  // namespace gradtune::policies
