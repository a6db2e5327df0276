// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
#include "tuner/files/strategy_file.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>
#include <set>

#include "engine/compress/compressor.h"
#include "tuner/files/file_kind.h"
#include "tuner/files/printable.h"
#include "tuner/files/strict_json.h"

namespace gradtune::tuner {
namespace {

using core::Error;
using nlohmann::ordered_json;

constexpr std::string_view kSchema = "gradtune.strategy/2";

// Far above any real job, and small enough that no sum of them overflows.
constexpr int64_t kMostElements = int64_t{1} << 50;
constexpr int64_t kMostRanks = 1'000'000;
constexpr int64_t kMostInFlight = 10'000;
constexpr int64_t kMostSteps = int64_t{1} << 50;
constexpr double kMostMs = 1e12;
constexpr size_t kMostNameBytes = 4096;   // as in tables (table_json.cc)
constexpr size_t kMostLabelBytes = 1000;  // decisions add more text to it
constexpr size_t kMostOptionBytes = 4000;

// A name may hold bytes that are not UTF-8, which JSON cannot express; such a file will not fit, but it is a valid
// file.
std::string dump(const ordered_json& json) { return json.dump(-1, ' ', false, ordered_json::error_handler_t::replace); }

ordered_json to_ordered_json(const Evidence& evidence) {
  return {{"baseline_ms", evidence.baseline_ms},
          {"committed_ms", evidence.committed_ms},
          {"gain", evidence.gain},
          {"interval", {evidence.gain_low, evidence.gain_high}},
          {"steps", evidence.steps},
          {"date", evidence.date}};
}

ordered_json to_ordered_json(const core::Bucket& bucket, const std::vector<std::string>& tensors) {
  ordered_json slices = ordered_json::array();
  for (const core::Slice& slice : bucket.slices) {
    slices.push_back({{"tensor", tensors.at(static_cast<size_t>(slice.tensor))},
                      {"offset", slice.offset},
                      {"length", slice.length}});
  }
  return {
      {"option", core::to_string(bucket.option)}, {"due", core::to_string(bucket.due)}, {"slices", std::move(slices)}};
}

// Reads the parts of a file in a straight line; the reader keeps the first error.
class Parser {
 public:
  explicit Parser(core::TraitsTable known) : known_(known) {}

  core::Result<StrategyFile> parse(const JsonValue& root) {
    StrategyFile file;
    in_.schema(root, "schema", kSchema);
    const JsonObject& top = in_.object(
        root, "file",
        {"schema", "model", "world_size", "fidelity", "label", "tensors", "buckets", "order", "in_flight", "evidence"});
    if (!in_.ok()) return *in_.error();
    file.model = in_.hash(JsonReader::member(top, "model"), "model");
    file.world_size = static_cast<int>(in_.integer(JsonReader::member(top, "world_size"), "world_size", 1, kMostRanks));
    file.fidelity = fidelity(JsonReader::member(top, "fidelity"));
    file.label = printable(in_.text(JsonReader::member(top, "label"), "label", kMostLabelBytes));
    file.tensors = tensors(JsonReader::member(top, "tensors"));
    file.strategy.buckets = buckets(JsonReader::member(top, "buckets"));
    file.strategy.order = order(JsonReader::member(top, "order"), file.strategy.buckets);
    file.strategy.in_flight =
        static_cast<int>(in_.integer(JsonReader::member(top, "in_flight"), "in_flight", 1, kMostInFlight));
    file.evidence = evidence(JsonReader::member(top, "evidence"));
    if (!in_.ok()) return *in_.error();
    return file;
  }

 private:
  core::Fidelity fidelity(const JsonValue& value) {
    const auto fidelity = core::parse_fidelity(in_.text(value, "fidelity", kMostNameBytes));
    if (fidelity) return fidelity.value();
    in_.fail("fidelity", fidelity.error().message);
    return {};
  }

  std::vector<std::string> tensors(const JsonValue& value) {
    std::vector<std::string> names;
    for (const JsonValue& entry : in_.array(value, "tensors")) {
      const std::string where = fmt::format("tensors[{}]", names.size());
      names.push_back(in_.text(entry, where, kMostNameBytes));
      const auto position = static_cast<int32_t>(names.size() - 1);
      if (!position_.emplace(names.back(), position).second) {
        in_.fail(where, fmt::format("\"{}\" stands there twice", names.back()));
      }
      if (!in_.ok()) break;
    }
    return names;
  }

  std::vector<core::Bucket> buckets(const JsonValue& value) {
    std::vector<core::Bucket> buckets;
    for (const JsonValue& entry : in_.array(value, "buckets")) {
      if (!in_.ok()) break;
      buckets.push_back(bucket(entry, fmt::format("buckets[{}]", buckets.size())));
    }
    return buckets;
  }

  core::Bucket bucket(const JsonValue& value, const std::string& where) {
    core::Bucket bucket;
    const JsonObject& members = in_.object(value, where, {"option", "due", "slices"});
    const auto option = core::parse_option(
        in_.text(JsonReader::member(members, "option"), where + ".option", kMostOptionBytes), known_);
    if (option) {
      bucket.option = option.value();
    } else {
      in_.fail(where + ".option", option.error().message);
    }
    const auto due = core::parse_due(in_.text(JsonReader::member(members, "due"), where + ".due", kMostOptionBytes));
    if (due) {
      bucket.due = due.value();
    } else {
      in_.fail(where + ".due", due.error().message);
    }
    for (const JsonValue& entry : in_.array(JsonReader::member(members, "slices"), where + ".slices")) {
      if (!in_.ok()) break;
      bucket.slices.push_back(slice(entry, fmt::format("{}.slices[{}]", where, bucket.slices.size())));
    }
    return bucket;
  }

  core::Slice slice(const JsonValue& value, const std::string& where) {
    const JsonObject& members = in_.object(value, where, {"tensor", "offset", "length"});
    const std::string name = in_.text(JsonReader::member(members, "tensor"), where + ".tensor", kMostNameBytes);
    const auto tensor = position_.find(name);
    if (tensor == position_.end())
      in_.fail(where + ".tensor", fmt::format("\"{}\" is not among the file's tensors", name));
    return {.tensor = tensor == position_.end() ? -1 : tensor->second,
            .offset = in_.integer(JsonReader::member(members, "offset"), where + ".offset", 0, kMostElements),
            .length = in_.integer(JsonReader::member(members, "length"), where + ".length", 1, kMostElements)};
  }

  std::vector<core::Issue> order(const JsonValue& value, const std::vector<core::Bucket>& buckets) {
    std::vector<core::Issue> order;
    for (const JsonValue& entry : in_.array(value, "order")) {
      if (!in_.ok()) break;
      const std::string where = fmt::format("order[{}]", order.size());
      const JsonArray& pair = in_.array(entry, where);
      if (pair.size() != 2) {
        in_.fail(where, fmt::format("[bucket, step] is needed, found an array of {}", pair.size()));
        break;
      }
      const int64_t bucket = in_.integer(pair[0], where + "[0]", 0, static_cast<int64_t>(buckets.size()) - 1);
      if (!in_.ok()) break;
      const auto steps = static_cast<int64_t>(buckets[static_cast<size_t>(bucket)].option.steps.size());
      order.push_back(
          {static_cast<int32_t>(bucket), static_cast<int32_t>(in_.integer(pair[1], where + "[1]", 0, steps - 1))});
    }
    return order;
  }

  std::optional<Evidence> evidence(const JsonValue& value) {
    if (value.is_null()) return {};
    const JsonObject& members =
        in_.object(value, "evidence", {"baseline_ms", "committed_ms", "gain", "interval", "steps", "date"});
    const auto gain = [&](const JsonValue& number, std::string_view where) {
      return in_.number(number, where, -kMostMs, 1);
    };
    Evidence evidence;
    evidence.baseline_ms = in_.number(JsonReader::member(members, "baseline_ms"), "evidence.baseline_ms", 0, kMostMs);
    evidence.committed_ms =
        in_.number(JsonReader::member(members, "committed_ms"), "evidence.committed_ms", 0, kMostMs);
    evidence.gain = gain(JsonReader::member(members, "gain"), "evidence.gain");
    const JsonArray& interval = in_.array(JsonReader::member(members, "interval"), "evidence.interval");
    if (interval.size() == 2) {
      evidence.gain_low = gain(interval[0], "evidence.interval[0]");
      evidence.gain_high = gain(interval[1], "evidence.interval[1]");
    } else {
      in_.fail("evidence.interval", fmt::format("[low, high] is needed, found an array of {}", interval.size()));
    }
    evidence.steps = in_.integer(JsonReader::member(members, "steps"), "evidence.steps", 0, kMostSteps);
    evidence.date = in_.text(JsonReader::member(members, "date"), "evidence.date", 40);
    if (evidence.date.find_first_not_of("0123456789-T:.+Z") != std::string::npos) {
      in_.fail("evidence.date",
               fmt::format("a date such as 2025-01-31T12:00:00Z is needed, found \"{}\"", evidence.date));
    }
    return evidence;
  }

  const core::TraitsTable known_;
  JsonReader in_;
  std::map<std::string, int32_t, std::less<>> position_;  // by position in the file's order of tensors
};

Error mismatch(std::string_view message) { return {Error::Code::mismatch, printable(message)}; }

// The table in the file's order.
core::Result<core::GradientTable> reorder(const StrategyFile& file, const core::GradientTable& table) {
  std::map<std::string_view, const core::TensorInfo*> by_name;
  for (const core::TensorInfo& tensor : table.tensors) by_name[tensor.name] = &tensor;
  core::GradientTable ordered;
  for (const std::string& name : file.tensors) {
    const auto tensor = by_name.extract(name);
    if (!tensor) return mismatch(fmt::format("tensor \"{}\" of the file is not in this model", name));
    ordered.tensors.push_back(*tensor.mapped());
  }
  if (!by_name.empty())
    return mismatch(fmt::format("tensor \"{}\" of this model is not in the file", by_name.begin()->first));
  return ordered;
}

}  // namespace

std::string to_json(const StrategyFile& file) {
  std::string text = "{\n";
  const auto line = [&](std::string_view key, const std::string& value) {
    text += fmt::format("\"{}\": {},\n", key, value);
  };
  line("schema", dump(kSchema));
  line("model", dump(hex(file.model)));
  line("world_size", dump(file.world_size));
  line("fidelity", dump(core::to_string(file.fidelity)));
  line("label", dump(file.label));
  line("tensors", dump(file.tensors));
  std::vector<std::string> buckets, order;
  for (const core::Bucket& bucket : file.strategy.buckets)
    buckets.push_back(dump(to_ordered_json(bucket, file.tensors)));
  for (const core::Issue& issue : file.strategy.order)
    order.push_back(fmt::format("[{},{}]", issue.bucket, issue.step));
  line("buckets", fmt::format("[\n{}\n]", fmt::join(buckets, ",\n")));
  line("order", fmt::format("[{}]", fmt::join(order, ",")));
  line("in_flight", dump(file.strategy.in_flight));
  text += fmt::format("\"evidence\": {}\n}}\n", file.evidence ? dump(to_ordered_json(*file.evidence)) : "null");
  return text;
}

StrategyFile strategy_file(const core::GradientTable& table, int world_size, core::Fidelity fidelity, std::string label,
                           const core::Strategy& strategy) {
  StrategyFile file{.model = table.fingerprint(),
                    .world_size = world_size,
                    .fidelity = fidelity,
                    .label = std::move(label),
                    .strategy = strategy};
  for (const core::TensorInfo& tensor : table.tensors) file.tensors.push_back(tensor.name);
  return file;
}

core::Result<StrategyFile> parse_strategy(std::string_view text, core::TraitsTable known) {
  const core::Result<JsonValue> root = parse_json(text, kJobLimits);
  auto file = root ? parse_strategy(root.value(), known) : root.error();
  return file ? std::move(file) : read_as(FileKind::strategy, text, file.error());
}

core::Result<StrategyFile> parse_strategy(const JsonValue& value, core::TraitsTable known) {
  return Parser(known).parse(value);
}

core::Result<core::GradientTable> fit(const StrategyFile& file, const core::GradientTable& table, int world_size,
                                      core::Fidelity fidelity, core::TraitsTable known) {
  if (file.model != table.fingerprint()) {
    return mismatch(
        fmt::format("it is for another model: names, shapes or dtypes differ (fingerprint {}, this "
                    "model has {})",
                    hex(file.model), hex(table.fingerprint())));
  }
  if (file.world_size != world_size) {
    return mismatch(fmt::format("it is for {} ranks, this job has {}", file.world_size, world_size));
  }
  if (file.fidelity > fidelity) {
    return mismatch(fmt::format("it is for fidelity {}, this job allows {}", core::to_string(file.fidelity),
                                core::to_string(fidelity)));
  }
  if (const core::Fidelity needed = core::needed_fidelity(file.strategy, known); needed > file.fidelity) {
    return mismatch(fmt::format("its compressors need fidelity {}, it says {}", core::to_string(needed),
                                core::to_string(file.fidelity)));
  }
  core::Result<core::GradientTable> ordered = reorder(file, table);
  if (!ordered) return ordered.error();
  if (core::Status status = core::validate(file.strategy, ordered.value()); !status) return status.error();
  return ordered;
}

core::Result<policies::Candidate> read_candidate(const std::string& text) {
  auto file = parse_strategy(text, compress::known_traits());
  if (!file) return file.error();
  return policies::Candidate{std::move(file.value().strategy), file.value().label};
}

}  // namespace gradtune::tuner
