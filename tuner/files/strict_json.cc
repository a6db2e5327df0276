// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
#include "tuner/files/strict_json.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>

#include "engine/core/version.h"
#include "tuner/files/printable.h"

namespace gradtune::tuner {
namespace {

const JsonValue* find(const JsonObject& object, std::string_view name) {
  const auto at = std::find_if(object.begin(), object.end(), [&](const auto& member) { return member.first == name; });
  return at == object.end() ? nullptr : &at->second;
}

// Builds a JsonValue from the parser's events. `open_` points at the containers that are not closed yet. A container
// grows only while it is the innermost one, so the outer ones do not move.
class Builder final : public nlohmann::json_sax<nlohmann::json> {
 public:
  explicit Builder(const JsonLimits& limits) : limits_(limits) {}

  core::Result<JsonValue> take() {
    if (!error_.empty()) return core::Error{core::Error::Code::corrupt, error_};
    return std::move(root_);
  }

  bool null() override { return add(nullptr); }
  bool boolean(bool value) override { return add(value); }
  bool number_integer(int64_t value) override { return add(value); }
  bool number_unsigned(uint64_t value) override {
    if (value > static_cast<uint64_t>(std::numeric_limits<int64_t>::max()))
      return refuse(fmt::format("the integer {} is too large", value));
    return add(static_cast<int64_t>(value));
  }
  bool number_float(double value, const std::string&) override { return add(value); }
  bool string(std::string& value) override { return add(std::move(value)); }
  bool binary(nlohmann::json::binary_t&) override { return refuse("binary values are not JSON"); }

  bool start_object(size_t) override { return open(JsonObject()); }
  bool end_object() override { return close(); }
  bool start_array(size_t) override { return open(JsonArray()); }
  bool end_array() override { return close(); }

  bool key(std::string& name) override {
    auto& members = std::get<JsonObject>(open_.back()->value);
    if (static_cast<int64_t>(members.size()) == limits_.members) {
      return refuse(fmt::format("an object has more than {} members", limits_.members));
    }
    if (find(members, name) != nullptr) {
      return refuse(fmt::format("the key \"{}\" stands twice in one object", name));
    }
    members.emplace_back(std::move(name), JsonValue{});
    return true;
  }

  bool parse_error(size_t position, const std::string&, const nlohmann::json::exception& error) override {
    std::string_view what = error.what();
    // Removes "[json.exception.parse_error.101] parse error at line 1, column 2: ".
    for (const std::string_view mark : {"] ", "column "}) {
      if (const size_t at = what.find(mark); at != what.npos) what.remove_prefix(at + mark.size());
    }
    if (const size_t at = what.find_first_not_of("0123456789"); at > 0 && at != what.npos) what.remove_prefix(at + 2);
    return refuse(fmt::format("not JSON at byte {}: {}", position, what));
  }

 private:
  bool refuse(std::string_view what) {
    error_ = printable(what);
    return false;
  }

  // The place of the next value.
  JsonValue* place() {
    if (open_.empty()) return &root_;
    if (auto* members = std::get_if<JsonObject>(&open_.back()->value)) return &members->back().second;
    return &std::get<JsonArray>(open_.back()->value).emplace_back();
  }

  template <typename T>
  bool add(T value) {
    if (++entries_ > limits_.entries) return refuse(fmt::format("more than {} values", limits_.entries));
    place()->value = std::move(value);
    return true;
  }

  template <typename T>
  bool open(T container) {
    if (static_cast<int>(open_.size()) == limits_.depth)
      return refuse(fmt::format("nested deeper than {}", limits_.depth));
    if (++entries_ > limits_.entries) return refuse(fmt::format("more than {} values", limits_.entries));
    JsonValue* at = place();
    at->value = std::move(container);
    open_.push_back(at);
    return true;
  }

  bool close() {
    open_.pop_back();
    return true;
  }

  const JsonLimits& limits_;
  JsonValue root_;
  std::vector<JsonValue*> open_;
  int64_t entries_ = 0;
  std::string error_;
};

std::string found(const JsonValue& value) {
  struct Describe {
    std::string operator()(std::nullptr_t) const { return "null"; }
    std::string operator()(bool b) const { return b ? "true" : "false"; }
    std::string operator()(int64_t n) const { return fmt::format("{}", n); }
    std::string operator()(double x) const { return fmt::format("{}", x); }
    std::string operator()(const std::string& s) const {
      return s.size() > 60 ? fmt::format("a text of {} bytes", s.size()) : fmt::format("\"{}\"", s);
    }
    std::string operator()(const JsonArray& a) const { return fmt::format("an array of {}", a.size()); }
    std::string operator()(const JsonObject&) const { return "an object"; }
  };
  return std::visit(Describe(), value.value);
}

}  // namespace

core::Result<JsonValue> parse_json(std::string_view text, const JsonLimits& limits) {
  if (static_cast<int64_t>(text.size()) > limits.bytes) {
    return core::Error{core::Error::Code::corrupt,
                       fmt::format("{} bytes; at most {} are read", text.size(), limits.bytes)};
  }
  Builder builder(limits);
  nlohmann::json::sax_parse(text, &builder);
  return builder.take();
}

std::string hex(uint64_t hash) { return fmt::format("{:016x}", hash); }

void JsonReader::fail(std::string_view where, const std::string& what) {
  if (!error_) error_ = {core::Error::Code::corrupt, printable(fmt::format("{}: {}", where, what))};
}

const JsonObject& JsonReader::object(const JsonValue& value, std::string_view where,
                                     std::initializer_list<std::string_view> members,
                                     std::initializer_list<std::string_view> optional) {
  return object(value, where, std::span(members.begin(), members.size()), std::span(optional.begin(), optional.size()));
}

const JsonObject& JsonReader::object(const JsonValue& value, std::string_view where,
                                     std::span<const std::string_view> members,
                                     std::span<const std::string_view> optional) {
  static const JsonObject kEmpty;
  const auto* object = std::get_if<JsonObject>(&value.value);
  if (object == nullptr) {
    fail(where, "an object is needed, found " + found(value));
    return kEmpty;
  }
  const auto needed = [&] { return fmt::format("{}", fmt::join(members, ", ")); };
  const auto known = [&] {
    return needed() + fmt::format("{}{}", optional.empty() ? "" : ", ", fmt::join(optional, ", "));
  };
  const auto holds = [](std::span<const std::string_view> names, std::string_view name) {
    return std::find(names.begin(), names.end(), name) != names.end();
  };
  for (const auto& [name, ignored] : *object) {
    if (!holds(members, name) && !holds(optional, name)) {
      fail(where, fmt::format("the key \"{}\" is unknown; known are {}", name, known()));
    }
  }
  for (std::string_view name : members) {
    if (find(*object, name) == nullptr)
      fail(where, fmt::format("the key \"{}\" is missing; needed are {}", name, needed()));
  }
  return *object;
}

const JsonArray& JsonReader::array(const JsonValue& value, std::string_view where) {
  static const JsonArray kEmpty;
  const auto* array = std::get_if<JsonArray>(&value.value);
  if (array == nullptr) fail(where, "an array is needed, found " + found(value));
  return array != nullptr ? *array : kEmpty;
}

const JsonValue& JsonReader::member(const JsonObject& object, std::string_view name) {
  static const JsonValue kNull;
  const JsonValue* value = find(object, name);
  return value != nullptr ? *value : kNull;
}

std::string JsonReader::text(const JsonValue& value, std::string_view where, size_t most_bytes) {
  const auto* text = std::get_if<std::string>(&value.value);
  if (text != nullptr && text->size() <= most_bytes) return *text;
  fail(where, fmt::format("a text of at most {} bytes is needed, found {}", most_bytes, found(value)));
  return {};
}

int64_t JsonReader::integer(const JsonValue& value, std::string_view where, int64_t least, int64_t most) {
  const auto* number = std::get_if<int64_t>(&value.value);
  if (number != nullptr && *number >= least && *number <= most) return *number;
  fail(where, fmt::format("an integer from {} to {} is needed, found {}", least, most, found(value)));
  return least;
}

double JsonReader::number(const JsonValue& value, std::string_view where, double least, double most) {
  const auto* integer = std::get_if<int64_t>(&value.value);
  const auto* real = std::get_if<double>(&value.value);
  const double number = integer != nullptr ? static_cast<double>(*integer) : real != nullptr ? *real : std::nan("");
  if (number >= least && number <= most) return number;
  fail(where, fmt::format("a number from {} to {} is needed, found {}", least, most, found(value)));
  return least;
}

bool JsonReader::flag(const JsonValue& value, std::string_view where) {
  const auto* flag = std::get_if<bool>(&value.value);
  if (flag == nullptr) fail(where, "true or false is needed, found " + found(value));
  return flag != nullptr && *flag;
}

uint64_t JsonReader::hash(const JsonValue& value, std::string_view where) {
  const std::string digits = text(value, where, 16);
  uint64_t hash = 0;
  std::from_chars(digits.data(), digits.data() + digits.size(), hash, 16);
  if (hex(hash) != digits) fail(where, fmt::format("16 digits 0-9a-f are needed, found \"{}\"", digits));
  return hash;
}

// Without a schema, the error about keys says more.
void JsonReader::schema(const JsonValue& file, std::string_view where, std::string_view wanted) {
  constexpr size_t kMostBytes = 100;
  const auto* object = std::get_if<JsonObject>(&file.value);
  if (object == nullptr || find(*object, "schema") == nullptr) return;
  const std::string schema = text(member(*object, "schema"), where, kMostBytes);
  if (schema == wanted) return;
  const auto* writer = std::get_if<std::string>(&member(*object, "gradtune").value);
  fail(where, fmt::format("\"{}\" is needed, found \"{}\"{}; this is gradtune {}", wanted, schema,
                          writer != nullptr ? ", which gradtune " + writer->substr(0, kMostBytes) + " wrote" : "",
                          core::version()));
}

}  // namespace gradtune::tuner
