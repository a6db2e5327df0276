// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// Reads untrusted JSON. Texts are parsed within limits of size, depth and number of entries, and duplicate keys are
// refused. Errors give the place in the file, the value found and the values allowed, and are fit to be shown. It
// leaves open what a file means.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "engine/core/result.h"

namespace gradtune::tuner {

struct JsonValue;
using JsonArray = std::vector<JsonValue>;
using JsonObject = std::vector<std::pair<std::string, JsonValue>>;  // in the order of the text, keys unique

// The parser refuses integers beyond int64_t.
struct JsonValue {
  std::variant<std::nullptr_t, bool, int64_t, double, std::string, JsonArray, JsonObject> value = nullptr;

  bool is_null() const { return std::holds_alternative<std::nullptr_t>(value); }
};

// A hostile text can use memory for its own bytes and at most 256 bytes for each entry.
struct JsonLimits {
  int64_t bytes = 1 << 20;
  int depth = 16;
  int64_t entries = 100'000;  // array elements and object members in total
  int64_t members = 64;       // of one object
};

// Limits for a job's description of itself in one text: its gradient table, a strategy, the times of a step. These
// grow with the job, by less than 1 KiB and 40 entries a tensor even if each tensor has its own bucket. So a job of
// 200,000 tensors is within these limits.
constexpr JsonLimits kJobLimits{.bytes = int64_t{1} << 28, .entries = 10'000'000};

core::Result<JsonValue> parse_json(std::string_view text, const JsonLimits& limits);

// A hash as files hold it: 16 digits 0-9a-f.
std::string hex(uint64_t hash);

// Reads values with range checks. It keeps the first error and returns defaults after it. So a caller reads a whole
// file in a straight line and asks for the error once.
class JsonReader {
 public:
  bool ok() const { return !error_; }
  const std::optional<core::Error>& error() const { return error_; }
  void fail(std::string_view where, const std::string& what);

  // Returns an object with these members in any order; optional ones may be missing.
  const JsonObject& object(const JsonValue& value, std::string_view where, std::span<const std::string_view> members,
                           std::span<const std::string_view> optional);
  const JsonObject& object(const JsonValue& value, std::string_view where,
                           std::initializer_list<std::string_view> members,
                           std::initializer_list<std::string_view> optional = {});
  const JsonArray& array(const JsonValue& value, std::string_view where);

  // Returns a member of an object that `object` returned. Null for one that is missing after an error.
  static const JsonValue& member(const JsonObject& object, std::string_view name);

  std::string text(const JsonValue& value, std::string_view where, size_t most_bytes);
  int64_t integer(const JsonValue& value, std::string_view where, int64_t least, int64_t most);
  double number(const JsonValue& value, std::string_view where, double least, double most);
  bool flag(const JsonValue& value, std::string_view where);
  uint64_t hash(const JsonValue& value, std::string_view where);  // in the format of hex()

  // Checks the schema of a file that is an object. Call it before reading its keys, which differ between schemas.
  // The error also names the gradtune that wrote the file, if it is known, and this one.
  void schema(const JsonValue& file, std::string_view where, std::string_view wanted);

 private:
  std::optional<core::Error> error_;
};

}  // namespace gradtune::tuner
