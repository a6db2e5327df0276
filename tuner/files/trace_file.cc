// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
#include "tuner/files/trace_file.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <set>

#include "tuner/files/file_kind.h"
#include "tuner/files/strict_json.h"
#include "tuner/files/table_json.h"

namespace gradtune::tuner {
namespace {

constexpr std::string_view kSchema = "gradtune.trace/2";
constexpr size_t kMostName = 1024, kMostText = 4096;
constexpr int64_t kMostElements = int64_t{1} << 40;
constexpr double kMostUs = 1e12;

TraceFile read_published(const JsonValue& root, JsonReader& reader) {
  const JsonObject& file = reader.object(root, "trace", {"model", "tensors"}, {"order", "ready_us", "source"});
  TraceFile trace{.model = reader.text(JsonReader::member(file, "model"), "trace.model", kMostText), .table = {}};
  for (const std::string_view remark : {"order", "ready_us", "source"}) {
    const JsonValue& value = JsonReader::member(file, remark);
    if (!value.is_null()) reader.text(value, fmt::format("trace.{}", remark), kMostText);
  }
  for (const JsonValue& entry : reader.array(JsonReader::member(file, "tensors"), "trace.tensors")) {
    const std::string where = fmt::format("trace.tensors[{}]", trace.table.tensors.size());
    const JsonObject& tensor = reader.object(entry, where, {"name", "numel", "ready_us"});
    const int64_t numel = reader.integer(JsonReader::member(tensor, "numel"), where + ".numel", 0, kMostElements);
    trace.table.tensors.push_back(
        {.name = reader.text(JsonReader::member(tensor, "name"), where + ".name", kMostName),
         .shape = {numel},
         .numel = numel,
         .ready_us = reader.number(JsonReader::member(tensor, "ready_us"), where + ".ready_us", 0, kMostUs)});
  }
  return trace;
}

TraceFile read_recorded(const JsonValue& root, JsonReader& reader) {
  reader.schema(root, "trace.schema", kSchema);
  const JsonObject& file =
      reader.object(root, "trace", {"schema", "model", "forward_us", "update_element_us", "tensors"}, {"uses"});
  if (!reader.ok()) return {};
  return {.model = reader.text(JsonReader::member(file, "model"), "trace.model", kMostText),
          .table = read_table(file, "trace.", reader)};
}

// Checks backward order, and that names are unique.
void check_order(const core::GradientTable& table, JsonReader& reader) {
  std::set<std::string_view> names;
  double last_us = 0;
  for (size_t t = 0; t < table.tensors.size(); ++t) {
    const auto& [name, ready_us] =
        std::pair<const std::string&, double>(table.tensors[t].name, table.tensors[t].ready_us);
    const std::string where = fmt::format("trace.tensors[{}]", t);
    if (!names.insert(name).second)
      reader.fail(where + ".name", fmt::format("\"{}\" is the name of another tensor too", name));
    if (ready_us < last_us) {
      reader.fail(
          where + ".ready_us",
          fmt::format("{} is before the tensor in front of it ({}); backward order is needed", ready_us, last_us));
    }
    last_us = ready_us;
  }
}

}  // namespace

core::Result<TraceFile> parse_trace(std::string_view text) {
  const core::Result<JsonValue> root = parse_json(text, kJobLimits);
  if (!root) return read_as(FileKind::trace, text, root.error());
  JsonReader reader;
  const auto* object = std::get_if<JsonObject>(&root.value().value);
  const bool is_recorded = object != nullptr && !JsonReader::member(*object, "schema").is_null();
  TraceFile trace = is_recorded ? read_recorded(root.value(), reader) : read_published(root.value(), reader);
  check_order(trace.table, reader);
  if (reader.ok() && trace.table.numel() == 0) {
    reader.fail("trace.tensors", trace.table.tensors.empty() ? "there are none; at least one is needed"
                                                             : "all are empty; at least one with elements is needed");
  }
  if (!reader.ok()) return read_as(FileKind::trace, text, *reader.error());
  return trace;
}

// One line for each tensor.
std::string to_json(const TraceFile& trace) {
  const std::string model = nlohmann::json(trace.model).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
  return fmt::format("{{\"schema\":\"{}\",\"model\":{},\n{}}}\n", kSchema, model, table_members(trace.table, "\n"));
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
  return trace;
}

}  // namespace gradtune::tuner
