// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
#include "tuner/cli/replay.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <nlohmann/json.hpp>
#include <optional>

#include "engine/compress/compressor.h"
#include "engine/core/clock.h"
#include "policies/cost/forward_pass.h"
#include "policies/cost/linear_cost.h"
#include "policies/cost/program_cost.h"
#include "policies/cost/timeline.h"
#include "policies/planner.h"
#include "policies/space/admission.h"
#include "tuner/files/chrome_trace.h"
#include "tuner/files/cost_file.h"
#include "tuner/files/file_io.h"
#include "tuner/files/strict_json.h"
#include "tuner/files/trace_file.h"

namespace gradtune::tuner {
namespace {

constexpr int64_t kMostCostBytes = JsonLimits().bytes;

struct Replayed {
  const TraceFile& trace;
  const policies::CostModel& model;
  const policies::Planned& planned;
  double planning_ms;
  std::optional<double> timeline_us;  // of a cost file

  bool numbered() const { return !timeline_us; }  // options have published numbers

  const core::GradientTable& table() const { return trace.table; }
  // The time of the last ready gradient.
  double backward_us() const { return table().tensors.empty() ? 0 : table().tensors.back().ready_us; }
  size_t option_of(const core::Bucket& bucket) const { return policies::number_of(bucket.option, model).value(); }
  bool is_whole(const core::Slice& slice) const {
    return slice.length == table().tensors[static_cast<size_t>(slice.tensor)].numel;
  }
};

nlohmann::ordered_json slices_of(const core::Bucket& bucket) {
  nlohmann::ordered_json slices = nlohmann::ordered_json::array();
  for (const core::Slice& slice : bucket.slices) {
    slices.push_back({{"tensor", slice.tensor}, {"offset", slice.offset}, {"length", slice.length}});
  }
  return slices;
}

// With a forward pass, the buckets are in the order in which they are sent.
nlohmann::ordered_json sent_buckets(const core::Strategy& strategy) {
  nlohmann::ordered_json buckets = nlohmann::ordered_json::array();
  std::vector<bool> is_sent(strategy.buckets.size());
  for (const core::Issue& issue : strategy.order) {
    const auto b = static_cast<size_t>(issue.bucket);
    if (is_sent[b]) continue;
    is_sent[b] = true;
    buckets.push_back({{"slices", slices_of(strategy.buckets[b])}});
  }
  return buckets;
}

std::string as_json(const Replayed& replayed, const ReplayOptions& options) {
  nlohmann::ordered_json json;
  json["time_ms"] = replayed.planned.end_us * 1e-3;
  json["backward_ms"] = replayed.backward_us() * 1e-3;
  if (replayed.timeline_us) json["timeline_ms"] = *replayed.timeline_us * 1e-3;
  json["planning_ms"] = replayed.planning_ms;
  if (options.forward) {
    json["buckets"] = sent_buckets(replayed.planned.strategy);
    return json.dump() + "\n";
  }
  json["error_bound"] = replayed.planned.error_bound ? nlohmann::ordered_json(*replayed.planned.error_bound) : nullptr;
  json["buckets"] = nlohmann::ordered_json::array();
  for (const core::Bucket& bucket : replayed.planned.strategy.buckets) {
    nlohmann::ordered_json entry = {{"first", bucket.slices.front().tensor}, {"last", bucket.slices.back().tensor}};
    if (replayed.numbered()) {
      entry["option"] = replayed.option_of(bucket);
    } else {
      entry["option"] = core::to_string(bucket.option);
    }
    if (!std::all_of(bucket.slices.begin(), bucket.slices.end(), [&](const auto& s) { return replayed.is_whole(s); })) {
      entry["slices"] = slices_of(bucket);
    }
    json["buckets"].push_back(std::move(entry));
  }
  return json.dump() + "\n";
}

std::string as_table(const Replayed& replayed, const ReplayOptions& options) {
  const auto& tensors = replayed.table().tensors;
  const core::Strategy& strategy = replayed.planned.strategy;
  std::string text =
      fmt::format("{}: {} tensors, {:.1f} M elements, last gradient ready after {:.2f} ms\n", replayed.trace.model,
                  tensors.size(), static_cast<double>(replayed.table().numel()) * 1e-6, replayed.backward_us() * 1e-3);
  text += fmt::format("policy {}: {:.2f} ms in {} buckets", options.policy, replayed.planned.end_us * 1e-3,
                      strategy.buckets.size());
  if (options.forward) text += fmt::format(", to the end of the next forward pass");
  if (replayed.planned.error_bound)
    text += fmt::format(", at most {:.2f} % above the best in order of readiness", *replayed.planned.error_bound * 100);
  text += fmt::format("; planned in {:.2f} ms\n", replayed.planning_ms);
  if (replayed.timeline_us) {
    text += fmt::format("by the executor's rules, in flight {}: {:.2f} ms\n", strategy.in_flight,
                        *replayed.timeline_us * 1e-3);
  }
  text += "\n";
  text += fmt::format("{:>6}  {:>12}  {:>11}  {:>9}  {}\n", "bucket", "tensors", "elements", "ready_ms", "option");
  for (size_t b = 0; b < strategy.buckets.size(); ++b) {
    const core::Bucket& bucket = strategy.buckets[b];
    const int32_t first = bucket.slices.front().tensor, last = bucket.slices.back().tensor;
    const std::string number = replayed.numbered() ? fmt::format(" ({})", replayed.option_of(bucket)) : "";
    text += fmt::format("{:>6}  {:>12}  {:>11}  {:>9.2f}  {}{}\n", b,
                        first == last ? std::to_string(first) : fmt::format("{}-{}", first, last), core::numel(bucket),
                        tensors[static_cast<size_t>(last)].ready_us * 1e-3, core::to_string(bucket.option), number);
  }
  return text;
}

// A model together with the description of its job for policies.
struct Modelled {
  std::unique_ptr<policies::CostModel> model;
  policies::Knowledge knowledge;
  std::optional<policies::CostTable> table = {};
};

core::Result<Modelled> published(const ReplayOptions& options, const core::GradientTable& table) {
  auto model = policies::make_published_cost(options.published);
  if (!model) return model.error();
  return Modelled{std::move(model.value()), policies::published_knowledge(options.published, table)};
}

constexpr std::string_view kLinear = "linear:";

// "linear:A_US:B_NS".
core::Result<policies::LinearCost> parse_linear(const std::string& text) {
  constexpr double kMost = 1e12;
  std::array<double, 2> numbers{};
  const char *at = text.data() + kLinear.size(), *const end = text.data() + text.size();
  for (double& number : numbers) {
    const auto [next, error] = std::from_chars(at, end, number);
    const bool is_last = &number == &numbers.back();
    if (error != std::errc() || !(number >= 0 && number <= kMost) ||
        (is_last ? next != end : next == end || *next != ':')) {
      return core::Error{core::Error::Code::invalid,
                         fmt::format("--cost {} is not linear:A_US:B_NS, two numbers from 0 to {}", text, kMost)};
    }
    at = next + 1;
  }
  return policies::LinearCost{.message_us = numbers[0], .element_us = numbers[1] * 1e-3};
}

core::Result<Modelled> linear(const ReplayOptions& options, const core::GradientTable& table) {
  const auto cost = parse_linear(options.cost);
  if (!cost) return cost.error();
  policies::Knowledge knowledge{.table = table,
                                .ranks = {.size = 2},
                                .fidelity = core::Fidelity::exact,
                                .codecs = {{"none"}},
                                .traits = compress::known_traits()};
  return Modelled{policies::make_linear_cost(cost.value()), std::move(knowledge), policies::linear_table(cost.value())};
}

core::Result<Modelled> from_file(const ReplayOptions& options, const core::GradientTable& table) {
  const auto text = read_file(options.cost, kMostCostBytes);
  if (!text) return text.error();
  const core::TraitsTable known = compress::known_traits();
  auto cost = parse_cost(text.value(), known);
  if (!cost) return core::Error{cost.error().code, options.cost + ": " + cost.error().message};
  if (options.ranks.size > 0) cost.value().ranks = options.ranks;
  const core::Ranks& ranks = cost.value().ranks;
  policies::TreeJob job{.ranks = ranks,
                        .host_threads = 1,
                        .fidelity = options.fidelity,
                        .codecs = {},
                        .traits = known,
                        .numel = table.numel()};
  for (const policies::CodecRate& rate : cost.value().codecs) {
    if (std::find(job.codecs.begin(), job.codecs.end(), rate.codec) == job.codecs.end())
      job.codecs.push_back(rate.codec);
  }
  auto model = policies::make_program_cost(cost.value(), policies::tree_options(job), known, table.numel(),
                                           core::dtypes_of(table));
  if (!model) return core::Error{model.error().code, options.cost + ": " + model.error().message};
  policies::Knowledge knowledge{.table = table,
                                .ranks = {.size = ranks.size},
                                .fidelity = options.fidelity,
                                .codecs = job.codecs,
                                .traits = known,
                                .host_threads = job.host_threads};
  return Modelled{std::move(model.value()), std::move(knowledge), std::move(cost.value())};
}

// The step time by the executor's rules; also draws the step if a picture was asked for.
core::Result<double> timeline_us(const ReplayOptions& options, const policies::CostTable& cost,
                                 const policies::Knowledge& knowledge, const core::Strategy& strategy) {
  auto timeline = policies::Timeline::make(knowledge.table, strategy, cost, knowledge.traits);
  if (!timeline) return timeline.error();
  std::vector<policies::Span> spans;
  const double end_us = timeline.value().run(spans);
  if (options.chrome.empty()) return end_us;
  const TracedStep step = traced(spans, strategy, knowledge.table);
  const core::Status written = write_file_atomically(options.chrome, chrome_trace({&step, 1}));
  return written ? core::Result<double>(end_us) : written.error();
}

}  // namespace

core::Result<std::string> replay(const ReplayOptions& options) {
  const auto text = read_file(options.trace, kJobLimits.bytes);
  if (!text) return text.error();
  auto trace = parse_trace(text.value());
  if (!trace) return core::Error{trace.error().code, options.trace + ": " + trace.error().message};
  core::GradientTable& table = trace.value().table;
  if (options.forward) policies::assume_forward(table, *options.forward);
  auto modelled = options.cost == "published"         ? published(options, table)
                  : options.cost.starts_with(kLinear) ? linear(options, table)
                                                      : from_file(options, table);
  if (!modelled) return modelled.error();
  modelled.value().knowledge.forward_overlap = options.forward.has_value();

  const core::SteadyClock clock;
  const int64_t start_ns = clock.now_ns();
  const policies::CostModel& model = *modelled.value().model;
  const policies::PlannedJob job{model, std::move(modelled.value().knowledge)};
  const auto planned = policies::plan(options.policy, job);
  if (!planned) return planned.error();
  const double planning_ms = static_cast<double>(clock.now_ns() - start_ns) * 1e-6;
  Replayed replayed{trace.value(), model, planned.value(), planning_ms, {}};
  if (modelled.value().table) {
    const auto us = timeline_us(options, *modelled.value().table, job.knowledge, planned.value().strategy);
    if (!us) return us.error();
    replayed.timeline_us = us.value();
  }
  return options.json ? as_json(replayed, options) : as_table(replayed, options);
}

}  // namespace gradtune::tuner
