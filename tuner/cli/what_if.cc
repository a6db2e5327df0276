// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
#include "tuner/cli/what_if.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <set>
#include <utility>

#include "tuner/words.h"

namespace gradtune::tuner {
namespace {

struct Answers {
  const RecordedJob& job;
  std::vector<WhatIfAnswer> rows;

  // The error of a predicted time: the usual one of the model, and the doubt that the samples of its rates leave.
  double error_ms(const Forecast& forecast) const {
    const auto misfit = job.misfit();
    return (misfit ? misfit->middle : 0) * forecast.ms + forecast.error_ms;
  }
};

core::Result<std::vector<double>> parse_all(const std::vector<std::string>& texts, std::string_view option,
                                            core::Result<double> (*parse)(const std::string&)) {
  std::vector<double> values;
  for (const std::string& text : texts) {
    const auto value = parse(text);
    if (!value) return core::Error{value.error().code, fmt::format("{} {}", option, value.error().message)};
    values.push_back(value.value());
  }
  return values;
}

std::string in_rate(double mbit) {
  if (!(mbit > 0)) return "unknown";
  return mbit >= 1000 ? fmt::format("{:.3g} Gbit/s", mbit / 1000) : fmt::format("{:.3g} Mbit/s", mbit);
}
std::string in_delay(double us) {
  return us >= 1000 ? fmt::format("{:.3g} ms", us / 1000) : fmt::format("{:.3g} us", us);
}

std::string in_ranks(const core::Ranks& ranks) {
  const std::string text = plural(ranks.size, "rank");
  return ranks.has_levels() ? fmt::format("{}, {} on each node,", text, ranks.local_size) : text;
}

std::string place_of(const core::Ranks& ranks, const Link& link) {
  return fmt::format("{} at {} with a delay of {}", in_ranks(ranks), in_rate(link.rate_mbit), in_delay(link.delay_us));
}

// "bf16 + int8:256, 7 buckets".
std::string in_short(const core::Strategy& strategy) {
  std::set<std::string> parts;
  bool has_levels = false;
  for (const core::Bucket& bucket : strategy.buckets) {
    std::string part = bucket.option.codecs.empty() ? "none" : "";
    for (const core::CompressorSpec& codec : bucket.option.codecs)
      part += (part.empty() ? "" : ",") + core::to_string(codec);
    parts.insert(part);
    has_levels = has_levels || core::uses_levels(bucket.option);
  }
  return fmt::format("{}{}, {}", fmt::join(parts, " + "), has_levels ? " in nodes first" : "",
                     plural(static_cast<int64_t>(strategy.buckets.size()), "bucket"));
}

std::string choice_of(const WhatIfAnswer& row) {
  return row.choice.strategy == row.baseline.strategy ? "the baseline" : in_short(row.choice.strategy);
}

std::string headline(const Answers& answers) {
  const auto& rows = answers.rows;
  const auto [least, most] = std::ranges::minmax_element(rows, {}, &WhatIfAnswer::gain);
  if (rows.size() > 1) {
    return fmt::format(
        "In these {} settings, the strategy that policy auto would choose is expected to take {} to {} less time a "
        "step than the baseline, which is the communication without gradtune.\n",
        rows.size(), percent(least->gain()), percent(most->gain()));
  }
  const WhatIfAnswer& row = rows.front();
  std::string text = fmt::format(
      "On {}, a step is expected to take {} with the baseline, which is the communication without gradtune, and {} "
      "with the strategy that policy auto would choose: {} less",
      place_of(row.what.ranks, row.what.link), in_ms(row.baseline.ms), in_ms(row.choice.ms), percent(row.gain()));
  const double gain_ms = row.baseline.ms - row.choice.ms;
  if (gain_ms > 0 && gain_ms < answers.error_ms(row.choice)) text += ", which is within the error of the forecast";
  return text + ".\n";
}

std::string confidence(const Answers& answers) {
  const RecordedJob& job = answers.job;
  std::string text = "How sure: ";
  if (const auto misfit = job.misfit()) {
    text += fmt::format(
        "the forecast misses {} that this job ran by {} in the middle and {} at worst; \"+-\" is the former, and "
        "the spread of the operations' times in addition.\n",
        misfit->strategies == 1 ? "the one strategy" : fmt::format("the {} strategies", misfit->strategies),
        percent(misfit->middle), percent(misfit->largest));
  } else {
    text +=
        "no strategy ran for long enough to compare the forecast with; \"+-\" is the spread of the operations' "
        "times alone.\n";
  }
  text += fmt::format(
      "The job ran on {}. Further away the forecast rests on assumptions: every rank computes as in the recording, "
      "none is slower than the others, and the network carries all links at full rate at once.\n",
      place_of(job.model.cost().table.ranks, job.link));
  if (!job.guessed.empty()) {
    std::string names;
    for (const core::CompressorSpec& codec : job.guessed) names += (names.empty() ? "" : ", ") + core::to_string(codec);
    text += fmt::format(
        "This job ran at fidelity {} and never timed {}: their speed is a guess, on the fast side. A run at fidelity "
        "{} "
        "would measure it.\n",
        core::to_string(job.recorded_fidelity), names, core::to_string(job.knowledge.fidelity));
  }
  if (!std::ranges::all_of(answers.rows, &WhatIfAnswer::knows_levels)) {
    text +=
        "This job never timed messages between ranks of one node, so strategies that send inside nodes first are "
        "left out; they may be faster.\n";
  }
  return text;
}

std::string as_table(const Answers& answers) {
  std::string text = headline(answers) + confidence(answers) + "\n";
  text += fmt::format("{:>6}  {:>8}  {:>11}  {:>8}  {:>11}  {:>5}  {:>9}  {:>5}  {:>7}  {}\n", "ranks", "per node",
                      "rate", "delay", "baseline ms", "+-", "auto ms", "+-", "less", "auto sends");
  const auto error = [&](const Forecast& forecast) {
    return fmt::format("{:.0f} %", 100 * answers.error_ms(forecast) / forecast.ms);
  };
  for (const WhatIfAnswer& row : answers.rows) {
    const core::Ranks& ranks = row.what.ranks;
    text += fmt::format("{:>6}  {:>8}  {:>11}  {:>8}  {:>11}  {:>5}  {:>9}  {:>5}  {:>7}  {}\n", ranks.size,
                        ranks.has_levels() ? ranks.local_size : 1, in_rate(row.what.link.rate_mbit),
                        in_delay(row.what.link.delay_us), number(row.baseline.ms), error(row.baseline),
                        number(row.choice.ms), error(row.choice), percent(row.gain()), choice_of(row));
  }
  return text;
}

nlohmann::ordered_json place_json(const core::Ranks& ranks, const Link& link) {
  return {{"world_size", ranks.size},
          {"ranks_per_node", ranks.has_levels() ? ranks.local_size : 1},
          {"rate_mbit", link.rate_mbit},
          {"delay_us", link.delay_us}};
}

std::string as_json(const Answers& answers) {
  const RecordedJob& job = answers.job;
  nlohmann::ordered_json json;
  json["recorded"] = place_json(job.model.cost().table.ranks, job.link);
  json["strategies"] = nlohmann::ordered_json::array();
  for (const RanStrategy& ran : job.ran) {
    json["strategies"].push_back({{"label", ran.candidate.label},
                                  {"steps", ran.steps},
                                  {"measured_ms", ran.measured_ms},
                                  {"expected_ms", ran.expected_ms}});
  }
  json["guessed"] = nlohmann::ordered_json::array();
  for (const core::CompressorSpec& codec : job.guessed) json["guessed"].push_back(core::to_string(codec));
  json["settings"] = nlohmann::ordered_json::array();
  for (const WhatIfAnswer& row : answers.rows) {
    nlohmann::ordered_json entry = place_json(row.what.ranks, row.what.link);
    entry["baseline_ms"] = row.baseline.ms;
    entry["baseline_error_ms"] = answers.error_ms(row.baseline);
    entry["auto_ms"] = row.choice.ms;
    entry["auto_error_ms"] = answers.error_ms(row.choice);
    entry["auto"] = choice_of(row);
    json["settings"].push_back(std::move(entry));
  }
  return json.dump() + "\n";
}

}  // namespace

core::Result<std::string> what_if(const WhatIfOptions& options) {
  auto rates = parse_all(options.rates, "--rate", parse_rate_mbit);
  if (!rates) return rates.error();
  auto delays = parse_all(options.delays, "--delay", parse_delay_us);
  if (!delays) return delays.error();
  const auto journal = read_journal(options.journal);
  if (!journal) return journal.error();
  const auto named = [&](const core::Error& error) {
    return core::Error{error.code, options.journal + ": " + error.message};
  };
  const auto job = recorded_job(journal.value(), options.fidelity);
  if (!job) return named(job.error());
  const auto whats = combinations({.world_sizes = options.world_sizes,
                                   .ranks_per_node = options.ranks_per_node,
                                   .rates_mbit = std::move(rates).value(),
                                   .delays_us = std::move(delays).value()},
                                  job.value());
  if (!whats) return whats.error();
  Answers answers{.job = job.value(), .rows = {}};
  for (const WhatIf& what : whats.value()) {
    auto row = answer(what, job.value());
    if (!row) {
      return named({core::Error::Code::invalid, "the baseline sends in a way that none of its timings covers"});
    }
    answers.rows.push_back(std::move(*row));
  }
  return options.json ? as_json(answers) : as_table(answers);
}

}  // namespace gradtune::tuner
