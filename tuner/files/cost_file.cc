// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
#include "tuner/files/cost_file.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "tuner/files/file_kind.h"
#include "tuner/files/strict_json.h"

namespace gradtune::tuner {
namespace {

using core::Step;
using policies::CodecRate;
using policies::CollectiveRate;
using policies::CostTable;

constexpr std::string_view kSchema = "gradtune.cost/5";
constexpr size_t kMostText = 64;
constexpr int64_t kMostRanks = 1 << 20;
constexpr double kMostUs = 1e12;
constexpr int kMostCores = 1 << 20;

// "all_reduce", "all_gather@inter": the printed form of steps of programs.
core::Result<Step> parse_collective(const std::string& kind, const std::string& level) {
  const std::string word = level == to_string(core::Level::flat) ? kind : kind + "@" + level;
  const auto option = core::parse_option(word, {});
  if (!option) return option.error();
  if (option.value().steps.size() != 1 || !core::is_collective(option.value().steps[0].kind)) {
    return core::Error{core::Error::Code::invalid, "\"" + kind + "\" is not a collective"};
  }
  return option.value().steps[0];
}

class Parser {
 public:
  explicit Parser(core::TraitsTable known) : known_(known) {}

  core::Result<CostTable> parse(const JsonValue& root) {
    reader_.schema(root, "cost.schema", kSchema);
    const JsonObject& file = reader_.object(
        root, "cost", {"schema", "world_size", "ranks_per_node", "cores", "scale", "collectives", "codecs"},
        {"device"});
    table_.ranks.size =
        static_cast<int>(reader_.integer(JsonReader::member(file, "world_size"), "cost.world_size", 1, kMostRanks));
    table_.ranks.local_size = static_cast<int>(
        reader_.integer(JsonReader::member(file, "ranks_per_node"), "cost.ranks_per_node", 0, table_.ranks.size));
    if (table_.ranks.local_size > 0 && table_.ranks.size % table_.ranks.local_size != 0) {
      reader_.fail("cost.ranks_per_node",
                   fmt::format("{} does not divide the world size {}", table_.ranks.local_size, table_.ranks.size));
    }
    const JsonObject& cores = reader_.object(JsonReader::member(file, "cores"), "cost.cores",
                                             {"of_rank", "computing", "host_threads"}, {"network"});
    table_.cores = {
        .of_rank = reader_.number(JsonReader::member(cores, "of_rank"), "cost.cores.of_rank", 0, kMostCores),
        .computing = reader_.number(JsonReader::member(cores, "computing"), "cost.cores.computing", 0, kMostCores),
        .host = static_cast<int>(
            reader_.integer(JsonReader::member(cores, "host_threads"), "cost.cores.host_threads", 0, kMostCores))};
    if (const JsonValue& network = JsonReader::member(cores, "network"); !network.is_null()) {
      table_.cores.network = reader_.number(network, "cost.cores.network", 0, kMostCores);
    }
    const JsonObject& scale =
        reader_.object(JsonReader::member(file, "scale"), "cost.scale", {"fixed_us", "element_us"});
    table_.scale_us = us(scale, "fixed_us", "cost.scale");
    table_.scale_element_us = us(scale, "element_us", "cost.scale");
    for (const JsonValue& entry : reader_.array(JsonReader::member(file, "collectives"), "cost.collectives")) {
      collective(entry, fmt::format("cost.collectives[{}]", table_.collectives.size()));
    }
    for (const JsonValue& entry : reader_.array(JsonReader::member(file, "codecs"), "cost.codecs")) {
      codec(entry, fmt::format("cost.codecs[{}]", table_.codecs.size()));
    }
    if (const JsonValue& there = JsonReader::member(file, "device"); !there.is_null()) device(there);
    if (!reader_.ok()) return *reader_.error();
    return table_;
  }

 private:
  double us(const JsonObject& object, std::string_view name, const std::string& where) {
    return reader_.number(JsonReader::member(object, name), fmt::format("{}.{}", where, name), 0, kMostUs);
  }
  std::string text(const JsonObject& object, std::string_view name, const std::string& where) {
    return reader_.text(JsonReader::member(object, name), fmt::format("{}.{}", where, name), kMostText);
  }

  void device(const JsonValue& value) {
    const JsonObject& entry = reader_.object(value, "cost.device", {"collectives", "kernels", "to_host", "to_device"});
    if (!reader_.ok()) return;
    const auto flag = [&](std::string_view name) {
      return reader_.flag(JsonReader::member(entry, name), fmt::format("cost.device.{}", name));
    };
    const auto rate = [&](std::string_view name) {
      const std::string where = fmt::format("cost.device.{}", name);
      const JsonObject& copy = reader_.object(JsonReader::member(entry, name), where, {"fixed_us", "byte_us"});
      return policies::CopyRate{us(copy, "fixed_us", where), us(copy, "byte_us", where)};
    };
    table_.on_device = {.gradients = true, .collectives = flag("collectives"), .kernels = flag("kernels")};
    table_.to_host = rate("to_host");
    table_.to_device = rate("to_device");
  }

  void collective(const JsonValue& value, const std::string& where) {
    const JsonObject& entry = reader_.object(value, where, {"kind", "level", "message_us", "byte_us", "wait_us"});
    CollectiveRate rate{.message_us = us(entry, "message_us", where), .byte_us = us(entry, "byte_us", where)};
    rate.wait_us = reader_.number(JsonReader::member(entry, "wait_us"), where + ".wait_us", 0, rate.message_us);
    const std::string kind = text(entry, "kind", where), level = text(entry, "level", where);
    if (!reader_.ok()) return;
    const auto step = parse_collective(kind, level);
    if (!step) return reader_.fail(where, step.error().message);
    rate.kind = step.value().kind;
    rate.level = step.value().level;
    const bool again = std::any_of(table_.collectives.begin(), table_.collectives.end(), [&](const auto& other) {
      return other.kind == rate.kind && other.level == rate.level;
    });
    if (again) return reader_.fail(where, "this collective has a rate already");
    table_.collectives.push_back(rate);
  }

  void codec(const JsonValue& value, const std::string& where) {
    const JsonObject& entry = reader_.object(value, where, {"codec", "place", "use", "encode", "decode"});
    const std::string name = text(entry, "codec", where), place = text(entry, "place", where);
    const JsonObject& encode =
        reader_.object(JsonReader::member(entry, "encode"), where + ".encode", {"fixed_us", "element_us"});
    const JsonObject& decode =
        reader_.object(JsonReader::member(entry, "decode"), where + ".decode", {"fixed_us", "element_us", "byte_us"});
    CodecRate rate;
    rate.use = reader_.number(JsonReader::member(entry, "use"), where + ".use", 0, 1);
    rate.encode_us = us(encode, "fixed_us", where + ".encode");
    rate.encode_element_us = us(encode, "element_us", where + ".encode");
    rate.decode_us = us(decode, "fixed_us", where + ".decode");
    rate.decode_element_us = us(decode, "element_us", where + ".decode");
    rate.decode_byte_us = us(decode, "byte_us", where + ".decode");
    if (!reader_.ok()) return;
    const auto spec = core::parse_compressor(name, known_);
    if (!spec) return reader_.fail(where + ".codec", spec.error().message);
    rate.codec = spec.value();
    if (place != to_string(core::Place::device) && place != to_string(core::Place::host)) {
      return reader_.fail(where + ".place", "\"" + place + "\"; allowed are device and host");
    }
    rate.place = place == to_string(core::Place::device) ? core::Place::device : core::Place::host;
    const bool again = std::any_of(table_.codecs.begin(), table_.codecs.end(), [&](const CodecRate& other) {
      return other.codec == rate.codec && other.place == rate.place;
    });
    if (again) return reader_.fail(where, "this codec has rates at this place already");
    table_.codecs.push_back(std::move(rate));
  }

  const core::TraitsTable known_;
  JsonReader reader_;
  CostTable table_;
};

}  // namespace

core::Result<CostTable> parse_cost(std::string_view text, core::TraitsTable known) {
  const core::Result<JsonValue> root = parse_json(text, {});
  auto table = root ? Parser(known).parse(root.value()) : root.error();
  return table ? std::move(table) : read_as(FileKind::cost, text, table.error());
}

std::string to_json(const CostTable& table) {
  nlohmann::ordered_json json = {{"schema", kSchema},
                                 {"world_size", table.ranks.size},
                                 {"ranks_per_node", table.ranks.local_size},
                                 {"cores",
                                  {{"of_rank", table.cores.of_rank},
                                   {"computing", table.cores.computing},
                                   {"host_threads", table.cores.host},
                                   {"network", table.cores.network}}},
                                 {"scale", {{"fixed_us", table.scale_us}, {"element_us", table.scale_element_us}}},
                                 {"collectives", nlohmann::ordered_json::array()},
                                 {"codecs", nlohmann::ordered_json::array()}};
  for (const CollectiveRate& rate : table.collectives) {
    json["collectives"].push_back({{"kind", to_string(rate.kind)},
                                   {"level", to_string(rate.level)},
                                   {"message_us", rate.message_us},
                                   {"byte_us", rate.byte_us},
                                   {"wait_us", rate.wait_us}});
  }
  for (const CodecRate& rate : table.codecs) {
    json["codecs"].push_back(
        {{"codec", to_string(rate.codec)},
         {"place", to_string(rate.place)},
         {"use", rate.use},
         {"encode", {{"fixed_us", rate.encode_us}, {"element_us", rate.encode_element_us}}},
         {"decode",
          {{"fixed_us", rate.decode_us}, {"element_us", rate.decode_element_us}, {"byte_us", rate.decode_byte_us}}}});
  }
  if (table.on_device.gradients) {
    const auto rate = [](const policies::CopyRate& copy) {
      return nlohmann::ordered_json({{"fixed_us", copy.copy_us}, {"byte_us", copy.byte_us}});
    };
    json["device"] = {{"collectives", table.on_device.collectives},
                      {"kernels", table.on_device.kernels},
                      {"to_host", rate(table.to_host)},
                      {"to_device", rate(table.to_device)}};
  }
  return json.dump(1) + "\n";
}

}  // namespace gradtune::tuner
