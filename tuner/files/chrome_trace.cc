// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
#include "tuner/files/chrome_trace.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>
#include <utility>

namespace gradtune::tuner {
namespace {

using nlohmann::ordered_json;

// A row shows events that follow one another. While messages travel their link is already busy with others, so that
// part is an "async" event, for which viewers make a separate row.
void add_events(const policies::Span& span, const core::Strategy& strategy, const core::GradientTable& table,
                ordered_json& events) {
  const double busy_until_us = span.end_us - span.wait_us;
  const bool has_messages = span.handled_us > span.begin_us;
  const double busy_from_us = has_messages ? span.carried_us : span.begin_us;
  ordered_json event = {{"ph", "X"},
                        {"pid", 0},
                        {"tid", static_cast<int>(span.server)},
                        {"ts", busy_from_us},
                        {"dur", busy_until_us - busy_from_us}};
  if (span.bucket < 0) {
    event["name"] = policies::to_string(span.phase);
    if (span.step >= 0)
      event["name"] =
          fmt::format("{} to {}", policies::to_string(span.phase), table.tensors[static_cast<size_t>(span.step)].name);
    events.push_back(std::move(event));
    return;
  }
  const core::Bucket& bucket = strategy.buckets[static_cast<size_t>(span.bucket)];
  const std::string what = span.step == -1 ? "scale"
                           : span.step < -1
                               ? "copy"
                               : std::string(to_string(bucket.option.steps[static_cast<size_t>(span.step)].kind));
  event["name"] = fmt::format("{} {}", what, span.bucket);
  event["args"] = {{"bucket", span.bucket}, {"elements", core::numel(bucket)}, {"program", to_string(bucket.option)}};
  if (has_messages) {
    events.push_back({{"ph", "X"},
                      {"pid", 0},
                      {"tid", static_cast<int>(policies::Server::messages)},
                      {"ts", span.begin_us},
                      {"dur", span.handled_us - span.begin_us},
                      {"name", event["name"]}});
  }
  events.push_back(std::move(event));
  if (span.wait_us <= 0) return;
  const std::string name = fmt::format("{} {} travels", what, span.bucket),
                    id = fmt::format("{}.{}", span.bucket, span.step);
  for (const auto& [phase, us] : {std::pair("b", busy_until_us), std::pair("e", span.end_us)}) {
    events.push_back({{"ph", phase}, {"cat", "travel"}, {"id", id}, {"pid", 0}, {"name", name}, {"ts", us}});
  }
}

}  // namespace

std::string chrome_trace(std::span<const policies::Span> spans, const core::Strategy& strategy,
                         const core::GradientTable& table) {
  ordered_json events = ordered_json::array();
  for (size_t s = 0; s < policies::kServers; ++s) {
    const char* name = policies::to_string(static_cast<policies::Server>(s));
    events.push_back({{"ph", "M"}, {"pid", 0}, {"tid", s}, {"name", "thread_name"}, {"args", {{"name", name}}}});
  }
  for (const policies::Span& span : spans) add_events(span, strategy, table, events);
  return ordered_json{{"displayTimeUnit", "ms"}, {"traceEvents", std::move(events)}}.dump(
             -1, ' ', false, ordered_json::error_handler_t::replace) +
         "\n";
}

}  // namespace gradtune::tuner
