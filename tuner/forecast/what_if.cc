// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
#include "tuner/forecast/what_if.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <span>
#include <string_view>
#include <utility>

namespace gradtune::tuner {
namespace {

constexpr double kLeastHandlingUs = 5;  // of a message, on an idle core

core::Error invalid(std::string message) { return {core::Error::Code::invalid, std::move(message)}; }

// A byte's cost beyond that of the recorded link, for example in the ranks' own handling, stays.
double moved_byte_us(double byte_us, double recorded_us, double us) {
  const double of_link = std::min(byte_us, recorded_us);
  return of_link / recorded_us * us + byte_us - of_link;
}

// The two parts of a message's time (policies::CollectiveRate).
struct MessageTime {
  double handling_us = 0, wait_us = 0;
};

// A message takes two delays: the receiver announces it first. A fit that could not tell waiting from handling has
// the delay in the time of handling.
MessageTime delayed(const MessageTime& time, double more_us) {
  const double wait_us = time.wait_us + more_us;
  return {std::max(time.handling_us + std::min(wait_us, 0.0), std::min(time.handling_us, kLeastHandlingUs)),
          std::max(wait_us, 0.0)};
}

// `before` messages took `each_us`, and each further one takes `further_us`: the time of one of `after` messages. The
// fixed part of a collective, which a fit counts to its messages, so does not grow with their number.
double on_average_us(double each_us, int before, double further_us, int after) {
  if (after <= 0) return each_us;
  const double all_us = before * each_us + (after - before) * further_us;
  return std::max(all_us / after, std::min(each_us, further_us));
}

void move_messages(const WhatIf& what, const RecordedJob& job, policies::CollectiveRate& rate) {
  const double more_us = policies::uses_network(rate.level) ? 2 * (what.link.delay_us - job.link.delay_us) : 0;
  const policies::IdleLink& idle = job.knowledge.machine.idle_links.of(rate.level);
  const MessageTime recorded{rate.message_us - rate.wait_us, rate.wait_us};
  const MessageTime further{std::max(idle.message_us - idle.wait_us, kLeastHandlingUs), idle.wait_us};
  MessageTime one = delayed(recorded, more_us);
  if (what.ranks.has(rate.level) && job.knowledge.ranks.has(rate.level)) {
    const MessageTime next = delayed(idle.message_us > 0 ? further : recorded, more_us);
    const int before = job.knowledge.ranks.of(rate.level), after = what.ranks.of(rate.level);
    one.handling_us = on_average_us(one.handling_us, core::messages(rate.kind, before), next.handling_us,
                                    core::messages(rate.kind, after));
    one.wait_us =
        on_average_us(one.wait_us, core::travels(rate.kind, before), next.wait_us, core::travels(rate.kind, after));
  }
  rate.wait_us = one.wait_us;
  rate.message_us = one.handling_us + one.wait_us;
}

struct Unit {
  std::string_view name;
  double factor;
};

// A number and its unit; nothing if it is none, or not within the limits.
std::optional<double> parse(const std::string& text, std::span<const Unit> units, double least, double most) {
  double number = 0;
  const char* const end = text.data() + text.size();
  const auto [next, error] = std::from_chars(text.data(), end, number);
  if (error != std::errc()) return {};
  const std::string_view name(next, static_cast<size_t>(end - next));
  const auto unit = std::ranges::find(units, name, &Unit::name);
  if (unit == units.end()) return {};
  number *= unit->factor;
  return number >= least && number <= most ? std::optional(number) : std::nullopt;
}

// The ranks that share a node: those of the recording if nothing was said and they divide the world size.
core::Result<core::Ranks> ranks_of(int world_size, const WhatIfs& asked, const core::Ranks& recorded) {
  int local = asked.ranks_per_node.value_or(recorded.local_size);
  if (local > 1 && world_size % local != 0) {
    if (asked.ranks_per_node) {
      return invalid(fmt::format("--ranks-per-node {} does not divide --world-size {}", local, world_size));
    }
    return invalid(fmt::format(
        "the recorded job has {} ranks on each node, which does not divide --world-size {}; --ranks-per-node says how "
        "many there are",
        local, world_size));
  }
  return core::Ranks{.size = world_size, .local_size = local > 1 && local < world_size ? local : 0};
}

}  // namespace

core::Result<std::vector<WhatIf>> combinations(const WhatIfs& asked, const RecordedJob& job) {
  const auto or_recorded = [](const auto& values, auto recorded) {
    return values.empty() ? std::vector{recorded} : values;
  };
  const std::vector<int> world_sizes = or_recorded(asked.world_sizes, job.knowledge.ranks.size);
  const std::vector<double> rates = or_recorded(asked.rates_mbit, job.link.rate_mbit);
  const std::vector<double> delays = or_recorded(asked.delays_us, job.link.delay_us);
  const size_t all = world_sizes.size() * rates.size() * delays.size();
  if (all > kMostWhatIfs) {
    return invalid(
        fmt::format("--world-size, --rate and --delay make {} combinations; {} are allowed", all, kMostWhatIfs));
  }
  std::vector<WhatIf> whats;
  for (const int size : world_sizes) {
    if (size < 2 || size > kMostWhatIfRanks) {
      return invalid(fmt::format("--world-size {} is not allowed; allowed are 2 to {} ranks", size, kMostWhatIfRanks));
    }
    const auto ranks = ranks_of(size, asked, job.knowledge.ranks);
    if (!ranks) return ranks.error();
    for (const double rate : rates) {
      for (const double delay : delays) whats.push_back({ranks.value(), {rate, delay}});
    }
  }
  return whats;
}

void move(const WhatIf& what, const RecordedJob& job, policies::CostTable& cost) {
  constexpr double kBits = 8;
  for (policies::CollectiveRate& rate : cost.collectives) {
    move_messages(what, job, rate);
    if (!policies::uses_network(rate.level) || !(what.link.rate_mbit > 0) || !(job.link.rate_mbit > 0)) continue;
    rate.byte_us = moved_byte_us(rate.byte_us, kBits / job.link.rate_mbit, kBits / what.link.rate_mbit);
  }
  cost.ranks = what.ranks;
}

std::optional<WhatIfAnswer> answer(const WhatIf& what, const RecordedJob& job) {
  const policies::StepTimePredictor model =
      job.model.elsewhere([&](policies::CostTable& cost) { move(what, job, cost); });
  policies::Knowledge knowledge = job.knowledge;
  knowledge.ranks = what.ranks;
  auto baseline = forecast_baseline(knowledge, model);
  std::vector<core::Strategy> known;
  for (const RanStrategy& ran : job.ran) known.push_back(ran.candidate.strategy);
  auto choice = forecast_choice(knowledge, model, known);
  if (!baseline || !choice) return {};
  const bool knows_levels = !what.ranks.has_levels() ||
                            std::ranges::any_of(model.cost().table.collectives,
                                                [](const auto& rate) { return rate.level == core::Level::intra; });
  return WhatIfAnswer{what, std::move(*baseline), std::move(*choice), knows_levels};
}

core::Result<double> parse_rate_mbit(const std::string& text) {
  constexpr Unit kUnits[] = {{"kbit", 1e-3}, {"mbit", 1}, {"gbit", 1e3}, {"tbit", 1e6}};
  if (const auto rate = parse(text, kUnits, 1e-3, 1e7)) return *rate;
  return invalid(fmt::format(
      "\"{}\" is no rate; allowed is a number with its unit, from 1kbit to 10tbit, such as 200mbit or 25gbit", text));
}

core::Result<double> parse_delay_us(const std::string& text) {
  constexpr Unit kUnits[] = {{"us", 1}, {"ms", 1e3}, {"s", 1e6}};
  if (const auto delay = parse(text, kUnits, 0, 10e6)) return *delay;
  return invalid(fmt::format(
      "\"{}\" is no delay; allowed is a number with its unit, from 0us to 10s, such as 50us or 1.5ms", text));
}

}  // namespace gradtune::tuner
