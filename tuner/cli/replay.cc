// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
#include "tuner/cli/replay.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "engine/core/clock.h"
#include "policies/planner.h"
#include "tuner/files.h"
#include "tuner/trace_file.h"

namespace gradtune::tuner {
namespace {

constexpr int64_t kMostTraceBytes = 1 << 20;

struct Replayed {
  const TraceFile& trace;
  const policies::CostModel& model;
  const policies::Planned& planned;
  double planning_ms;

  const core::GradientTable& table() const { return trace.table; }
  size_t option_of(const core::Bucket& bucket) const { return policies::number_of(bucket.option, model).value(); }
  bool is_whole(const core::Slice& slice) const {
    return slice.length == table().tensors[static_cast<size_t>(slice.tensor)].numel;
  }
};

std::string as_json(const Replayed& replayed) {
  nlohmann::ordered_json json;
  json["time_ms"] = replayed.planned.end_us * 1e-3;
  json["planning_ms"] = replayed.planning_ms;
  json["error_bound"] = replayed.planned.error_bound ? nlohmann::ordered_json(*replayed.planned.error_bound) : nullptr;
  json["buckets"] = nlohmann::ordered_json::array();
  for (const core::Bucket& bucket : replayed.planned.strategy.buckets) {
    nlohmann::ordered_json entry = {{"first", bucket.slices.front().tensor},
                                    {"last", bucket.slices.back().tensor},
                                    {"option", replayed.option_of(bucket)}};
    if (!std::all_of(bucket.slices.begin(), bucket.slices.end(), [&](const auto& s) { return replayed.is_whole(s); })) {
      for (const core::Slice& slice : bucket.slices) {
        entry["slices"].push_back({{"tensor", slice.tensor}, {"offset", slice.offset}, {"length", slice.length}});
      }
    }
    json["buckets"].push_back(std::move(entry));
  }
  return json.dump() + "\n";
}

std::string as_table(const Replayed& replayed, const ReplayOptions& options) {
  const auto& tensors = replayed.table().tensors;
  const core::Strategy& strategy = replayed.planned.strategy;
  std::string text = fmt::format(
      "{}: {} tensors, {:.1f} M elements, last gradient ready after {:.2f} ms\n", replayed.trace.model, tensors.size(),
      static_cast<double>(replayed.table().numel()) * 1e-6, tensors.empty() ? 0 : tensors.back().ready_us * 1e-3);
  text += fmt::format("policy {}: {:.2f} ms in {} buckets", options.policy, replayed.planned.end_us * 1e-3,
                      strategy.buckets.size());
  if (replayed.planned.error_bound)
    text += fmt::format(", at most {:.2f} % above the best", *replayed.planned.error_bound * 100);
  text += fmt::format("; planned in {:.2f} ms\n\n", replayed.planning_ms);
  text += fmt::format("{:>6}  {:>12}  {:>11}  {:>9}  {}\n", "bucket", "tensors", "elements", "ready_ms", "option");
  for (size_t b = 0; b < strategy.buckets.size(); ++b) {
    const core::Bucket& bucket = strategy.buckets[b];
    const int32_t first = bucket.slices.front().tensor, last = bucket.slices.back().tensor;
    const size_t option = replayed.option_of(bucket);
    text += fmt::format("{:>6}  {:>12}  {:>11}  {:>9.2f}  {} ({})\n", b,
                        first == last ? std::to_string(first) : fmt::format("{}-{}", first, last), core::numel(bucket),
                        tensors[static_cast<size_t>(last)].ready_us * 1e-3, option, core::to_string(bucket.option));
  }
  return text;
}

}  // namespace

core::Result<std::string> replay(const ReplayOptions& options) {
  const auto text = read_file(options.trace, kMostTraceBytes);
  if (!text) return text.error();
  const auto trace = parse_trace(text.value());
  if (!trace) return core::Error{trace.error().code, options.trace + ": " + trace.error().message};
  const auto model = policies::make_published_cost(options.cost);
  if (!model) return model.error();

  const core::SteadyClock clock;
  const int64_t start_ns = clock.now_ns();
  const policies::PlannedJob job{*model.value(), policies::published_knowledge(options.cost, trace.value().table)};
  const auto planned = policies::plan(options.policy, job);
  if (!planned) return planned.error();
  const double planning_ms = static_cast<double>(clock.now_ns() - start_ns) * 1e-6;
  const Replayed replayed{trace.value(), *model.value(), planned.value(), planning_ms};
  return options.json ? as_json(replayed) : as_table(replayed, options);
}

}  // namespace gradtune::tuner
