// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
#include "tuner/chrome_trace.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>

namespace gradtune::tuner {
namespace {

using nlohmann::ordered_json;

ordered_json event_of(const policies::Span& span, const core::Strategy& strategy, const core::GradientTable& table) {
  ordered_json event = {{"ph", "X"},
                        {"pid", 0},
                        {"tid", static_cast<int>(span.server)},
                        {"ts", span.begin_us},
                        {"dur", span.end_us - span.begin_us}};
  if (span.bucket < 0) {
    event["name"] = "backward to " + table.tensors[static_cast<size_t>(span.step)].name;
    return event;
  }
  const core::Bucket& bucket = strategy.buckets[static_cast<size_t>(span.bucket)];
  const std::string what =
      span.step < 0 ? "scale" : std::string(to_string(bucket.option.steps[static_cast<size_t>(span.step)].kind));
  event["name"] = fmt::format("{} {}", what, span.bucket);
  event["args"] = {{"bucket", span.bucket}, {"elements", core::numel(bucket)}, {"program", to_string(bucket.option)}};
  return event;
}

}  // namespace

std::string chrome_trace(std::span<const policies::Span> spans, const core::Strategy& strategy,
                         const core::GradientTable& table) {
  ordered_json events = ordered_json::array();
  for (size_t s = 0; s < policies::kServers; ++s) {
    const char* name = policies::to_string(static_cast<policies::Server>(s));
    events.push_back({{"ph", "M"}, {"pid", 0}, {"tid", s}, {"name", "thread_name"}, {"args", {{"name", name}}}});
  }
  for (const policies::Span& span : spans) events.push_back(event_of(span, strategy, table));
  return ordered_json{{"displayTimeUnit", "ms"}, {"traceEvents", std::move(events)}}.dump(
             -1, ' ', false, ordered_json::error_handler_t::replace) +
         "\n";
}

}  // namespace gradtune::tuner
