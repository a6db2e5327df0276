// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
#include "tuner/files/chrome_trace.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>
#include <utility>

namespace gradtune::tuner {
namespace {

using nlohmann::ordered_json;

ordered_json name_event(size_t process, const char* what, const std::string& name) {
  return {{"ph", "M"}, {"pid", process}, {"name", what}, {"args", {{"name", name}}}};
}

// A row shows events that follow one another. A span that travels is an "async" event, for which viewers make a
// separate row.
void add_events(size_t process, const TracedSpan& span, const core::Strategy& strategy, ordered_json& events) {
  if (!span.travel.empty()) {
    for (const auto& [phase, us] : {std::pair("b", span.begin_us), std::pair("e", span.end_us)}) {
      events.push_back(
          {{"ph", phase}, {"cat", "travel"}, {"id", span.travel}, {"pid", process}, {"name", span.name}, {"ts", us}});
    }
    return;
  }
  ordered_json event = {{"ph", "X"},
                        {"pid", process},
                        {"tid", span.row},
                        {"ts", span.begin_us},
                        {"dur", span.end_us - span.begin_us},
                        {"name", span.name}};
  if (span.bucket) {
    const core::Bucket& bucket = strategy.buckets[static_cast<size_t>(*span.bucket)];
    event["args"] = {
        {"bucket", *span.bucket}, {"elements", core::numel(bucket)}, {"program", to_string(bucket.option)}};
  }
  events.push_back(std::move(event));
}

std::string name_of(const policies::Span& span, const core::Strategy& strategy, const core::GradientTable& table) {
  if (span.bucket < 0) {
    const std::string phase = policies::to_string(span.phase);
    return span.step < 0 ? phase : fmt::format("{} to {}", phase, table.tensors[static_cast<size_t>(span.step)].name);
  }
  const core::Bucket& bucket = strategy.buckets[static_cast<size_t>(span.bucket)];
  const std::string what = span.step == -1 ? "scale"
                           : span.step < -1
                               ? "copy"
                               : std::string(to_string(bucket.option.steps[static_cast<size_t>(span.step)].kind));
  return fmt::format("{} {}", what, span.bucket);
}

}  // namespace

std::string chrome_trace(std::span<const TracedStep> steps) {
  ordered_json events = ordered_json::array();
  for (size_t s = 0; s < steps.size(); ++s) {
    const TracedStep& step = steps[s];
    if (!step.name.empty()) events.push_back(name_event(s, "process_name", step.name));
    for (size_t row = 0; row < step.rows.size(); ++row) {
      events.push_back(name_event(s, "thread_name", step.rows[row]));
      events.back()["tid"] = row;
    }
    for (const TracedSpan& span : step.spans) add_events(s, span, step.strategy, events);
  }
  return ordered_json{{"displayTimeUnit", "ms"}, {"traceEvents", std::move(events)}}.dump(
             -1, ' ', false, ordered_json::error_handler_t::replace) +
         "\n";
}

TracedStep traced(std::span<const policies::Span> spans, const core::Strategy& strategy,
                  const core::GradientTable& table) {
  TracedStep step{.name = {}, .rows = {}, .spans = {}, .strategy = strategy};
  for (size_t s = 0; s < policies::kServers; ++s) {
    step.rows.emplace_back(policies::to_string(static_cast<policies::Server>(s)));
  }
  for (const policies::Span& span : spans) {
    const bool has_messages = span.handled_us > span.begin_us;
    TracedSpan busy{.row = static_cast<size_t>(span.server),
                    .name = name_of(span, strategy, table),
                    .begin_us = has_messages ? span.carried_us : span.begin_us,
                    .end_us = span.end_us - span.wait_us};
    if (span.bucket >= 0) busy.bucket = span.bucket;
    if (has_messages) {
      step.spans.push_back({.row = static_cast<size_t>(policies::Server::messages),
                            .name = busy.name,
                            .begin_us = span.begin_us,
                            .end_us = span.handled_us,
                            .bucket = busy.bucket});
    }
    step.spans.push_back(busy);
    if (span.bucket < 0 || span.wait_us <= 0) continue;
    step.spans.push_back({.name = busy.name + " travels",
                          .begin_us = busy.end_us,
                          .end_us = span.end_us,
                          .travel = fmt::format("{}.{}", span.bucket, span.step)});
  }
  return step;
}

}  // namespace gradtune::tuner
