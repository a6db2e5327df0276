// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// The fields of a plain record as a list, for formats that walk all of them: a new field is one more row, and all
// formats have it. Each format decides how it writes a kind of field.
#pragma once

#include <cstdint>
#include <string_view>
#include <tuple>
#include <type_traits>

namespace gradtune::core {

enum class FieldKind : uint8_t {
  step,    // of training; -1: none
  slot,    // at least 0
  rank,    // -1: not known
  ms,      // a time
  flag,    // yes or no
  excess,  // measurement.h
};

template <typename Record, typename Value>
struct Field {
  using Type = Value;

  std::string_view name;
  Value Record::*member;
  FieldKind kind;
  bool is_optional = false;  // older programs did not write it; a missing field keeps its initial value
};

// Calls visit(field) for each of a tuple of fields, in order.
template <typename Fields, typename Visit>
constexpr void for_each_field(const Fields& fields, const Visit& visit) {
  std::apply([&](const auto&... field) { (visit(field), ...); }, fields);
}

// The number of fields that hold one of these types.
template <typename... Types, typename Fields>
constexpr int count_fields(const Fields& fields) {
  int count = 0;
  for_each_field(fields, [&]<typename Record, typename Value>(const Field<Record, Value>&) {
    count += (std::is_same_v<Value, Types> || ...) ? 1 : 0;
  });
  return count;
}

}  // namespace gradtune::core
