// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
#include "tuner/files/table_json.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

namespace gradtune::tuner {
namespace {

constexpr size_t kMostName = 4096;
constexpr int64_t kMostElements = int64_t{1} << 40;
constexpr double kMostUs = 1e12;

core::Content read_content(const JsonValue& value, const std::string& where, JsonReader& in) {
  const JsonObject& object = in.object(value, where, {"row", "of_one", "of_all", "high_one", "high_all"});
  if (!in.ok()) return {};
  const auto share = [&](const char* name) {
    return in.number(JsonReader::member(object, name), fmt::format("{}.{}", where, name), 0, 1);
  };
  return {.row = in.integer(JsonReader::member(object, "row"), where + ".row", 1, kMostElements),
          .of_one = share("of_one"),
          .of_all = share("of_all"),
          .high_one = share("high_one"),
          .high_all = share("high_all")};
}

// Reads an order that names each dimension once.
std::vector<int32_t> read_memory_order(const JsonValue& value, const std::string& where, size_t dimensions,
                                       JsonReader& in) {
  std::vector<int32_t> order;
  std::vector<bool> named(dimensions);
  for (const JsonValue& entry : in.array(value, where)) {
    const int64_t dimension = in.integer(entry, where, 0, static_cast<int64_t>(dimensions) - 1);
    if (!in.ok()) return {};
    if (named[static_cast<size_t>(dimension)]) in.fail(where, fmt::format("names dimension {} twice", dimension));
    named[static_cast<size_t>(dimension)] = true;
    order.push_back(static_cast<int32_t>(dimension));
  }
  if (order.size() != dimensions) in.fail(where, fmt::format("names {} of {} dimensions", order.size(), dimensions));
  return in.ok() ? order : std::vector<int32_t>();
}

core::TensorInfo read_tensor(const JsonValue& value, const std::string& where, JsonReader& in) {
  const JsonObject& tensor =
      in.object(value, where, {"name", "shape", "dtype", "ready_us"}, {"read_us", "content", "memory_order"});
  if (!in.ok()) return {};
  core::TensorInfo info;
  info.name = in.text(JsonReader::member(tensor, "name"), where + ".name", kMostName);
  info.numel = 1;
  for (const JsonValue& dimension : in.array(JsonReader::member(tensor, "shape"), where + ".shape")) {
    const int64_t size = in.integer(dimension, where + ".shape", 0, kMostElements);
    info.shape.push_back(size);
    if (in.ok() && size > 0 && info.numel > kMostElements / size) in.fail(where + ".shape", "too many elements");
    if (!in.ok()) return info;
    info.numel *= size;
  }
  const std::string dtype = in.text(JsonReader::member(tensor, "dtype"), where + ".dtype", kMostName);
  const auto found = std::ranges::find(core::kDTypes, dtype, [](core::DType d) { return core::to_string(d); });
  if (found == core::kDTypes.end()) in.fail(where + ".dtype", fmt::format("\"{}\" is unknown", dtype));
  if (!in.ok()) return info;
  info.dtype = *found;
  info.ready_us = in.number(JsonReader::member(tensor, "ready_us"), where + ".ready_us", 0, kMostUs);
  if (const JsonValue& read_us = JsonReader::member(tensor, "read_us"); !read_us.is_null()) {
    info.read_us = in.number(read_us, where + ".read_us", 0, kMostUs);
  }
  if (const JsonValue& content = JsonReader::member(tensor, "content"); !content.is_null()) {
    info.content = read_content(content, where + ".content", in);
  }
  if (const JsonValue& order = JsonReader::member(tensor, "memory_order"); !order.is_null()) {
    info.memory_order = read_memory_order(order, where + ".memory_order", info.shape.size(), in);
  }
  return info;
}

std::vector<core::CodecUse> read_uses(const JsonValue& value, const std::string& where, JsonReader& in) {
  std::vector<core::CodecUse> uses;
  for (const JsonValue& entry : in.array(value, where)) {
    const std::string at = fmt::format("{}[{}]", where, uses.size());
    const JsonObject& use = in.object(entry, at, {"compressor", "share"});
    if (!in.ok()) break;
    uses.push_back({.codec = in.text(JsonReader::member(use, "compressor"), at + ".compressor", kMostName),
                    .share = in.number(JsonReader::member(use, "share"), at + ".share", 0, 1)});
  }
  return uses;
}

using nlohmann::ordered_json;

// Numbers that JSON does not have become null, and bytes that are not UTF-8 a replacement character.
std::string dump(const ordered_json& json) { return json.dump(-1, ' ', false, ordered_json::error_handler_t::replace); }

ordered_json json_of(const core::TensorInfo& tensor) {
  ordered_json json = {{"name", tensor.name},
                       {"shape", tensor.shape},
                       {"dtype", core::to_string(tensor.dtype)},
                       {"ready_us", tensor.ready_us}};
  if (tensor.read_us >= 0) json["read_us"] = tensor.read_us;
  if (!tensor.is_row_major()) json["memory_order"] = tensor.memory_order;
  const core::Content& content = tensor.content;
  if (content == core::Content()) return json;
  json["content"] = {{"row", content.row},
                     {"of_one", content.of_one},
                     {"of_all", content.of_all},
                     {"high_one", content.high_one},
                     {"high_all", content.high_all}};
  return json;
}

}  // namespace

std::string table_members(const core::GradientTable& table, std::string_view between) {
  std::vector<std::string> tensors;
  for (const core::TensorInfo& tensor : table.tensors) tensors.push_back(dump(json_of(tensor)));
  ordered_json uses = ordered_json::array();
  for (const auto& [codec, share] : table.uses) uses.push_back({{"compressor", codec}, {"share", share}});
  return fmt::format(R"("forward_us":{},"update_element_us":{},"tensors":[{}]{}{})", dump(table.forward_us),
                     dump(table.update_element_us), fmt::join(tensors, fmt::format(",{}", between)),
                     uses.empty() ? "" : R"(,"uses":)", uses.empty() ? "" : dump(uses));
}

core::GradientTable read_table(const JsonObject& object, const std::string& where, JsonReader& in) {
  core::GradientTable table;
  const auto us = [&](const char* name) {
    return in.number(JsonReader::member(object, name), fmt::format("{}{}", where, name), 0, kMostUs);
  };
  table.forward_us = us("forward_us");
  table.update_element_us = us("update_element_us");
  for (const JsonValue& entry : in.array(JsonReader::member(object, "tensors"), where + "tensors")) {
    if (!in.ok()) break;
    table.tensors.push_back(read_tensor(entry, fmt::format("{}tensors[{}]", where, table.tensors.size()), in));
  }
  if (const JsonValue& uses = JsonReader::member(object, "uses"); !uses.is_null()) {
    table.uses = read_uses(uses, where + "uses", in);
  }
  return table;
}

}  // namespace gradtune::tuner
