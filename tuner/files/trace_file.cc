// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
#include "tuner/files/trace_file.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <set>

#include "tuner/files/strict_json.h"

namespace gradtune::tuner {
namespace {

constexpr size_t kMostName = 1024, kMostText = 4096;
constexpr int64_t kMostElements = int64_t{1} << 40;
constexpr double kMostUs = 1e12;

}  // namespace

core::Result<TraceFile> parse_trace(std::string_view text) {
  const core::Result<JsonValue> root = parse_json(text, {});
  if (!root) return root.error();
  JsonReader reader;
  const JsonObject& file = reader.object(root.value(), "trace", {"model", "tensors"}, {"order", "ready_us", "source"});
  TraceFile trace{.model = reader.text(JsonReader::member(file, "model"), "trace.model", kMostText), .table = {}};
  for (const std::string_view remark : {"order", "ready_us", "source"}) {
    const JsonValue& value = JsonReader::member(file, remark);
    if (!value.is_null()) reader.text(value, fmt::format("trace.{}", remark), kMostText);
  }
  std::set<std::string> names;
  double last_us = 0;
  for (const JsonValue& entry : reader.array(JsonReader::member(file, "tensors"), "trace.tensors")) {
    const std::string where = fmt::format("trace.tensors[{}]", trace.table.tensors.size());
    const JsonObject& tensor = reader.object(entry, where, {"name", "numel", "ready_us"});
    const std::string name = reader.text(JsonReader::member(tensor, "name"), where + ".name", kMostName);
    const int64_t numel = reader.integer(JsonReader::member(tensor, "numel"), where + ".numel", 0, kMostElements);
    const double ready_us = reader.number(JsonReader::member(tensor, "ready_us"), where + ".ready_us", 0, kMostUs);
    if (!names.insert(name).second)
      reader.fail(where + ".name", fmt::format("\"{}\" is the name of another tensor too", name));
    if (ready_us < last_us) {
      reader.fail(
          where + ".ready_us",
          fmt::format("{} is before the tensor in front of it ({}); backward order is needed", ready_us, last_us));
    }
    last_us = ready_us;
    trace.table.tensors.push_back({.name = name, .shape = {numel}, .numel = numel, .ready_us = ready_us});
  }
  if (!reader.ok()) return *reader.error();
  return trace;
}

std::string to_json(const TraceFile& trace) {
  nlohmann::ordered_json json = {{"model", trace.model},
                                 {"order", "backward (first ready first)"},
                                 {"ready_us", "time since the first gradient was ready, microseconds"},
                                 {"tensors", nlohmann::ordered_json::array()}};
  for (const core::TensorInfo& tensor : trace.table.tensors) {
    json["tensors"].push_back({{"name", tensor.name}, {"numel", tensor.numel}, {"ready_us", tensor.ready_us}});
  }
  return json.dump(1) + "\n";
}

core::Result<TraceFile> trace_of(const JournalFile& journal) {
  TraceFile trace{.model = fmt::format("{:016x}", journal.job.table.fingerprint()), .table = journal.job.table};
  auto& tensors = trace.table.tensors;
  if (std::all_of(tensors.begin(), tensors.end(),
                  [](const core::TensorInfo& tensor) { return tensor.ready_us == 0; })) {
    return core::Error{core::Error::Code::invalid, "the job ended before the times of its gradients were known"};
  }
  std::stable_sort(tensors.begin(), tensors.end(),
                   [](const core::TensorInfo& a, const core::TensorInfo& b) { return a.ready_us < b.ready_us; });
  for (core::TensorInfo& tensor : tensors) {
    tensor.shape = {tensor.numel};
    tensor.dtype = core::DType::f32;
  }
  return trace;
}

}  // namespace gradtune::tuner
