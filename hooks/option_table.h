// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// The table of options, one row for each. Arguments, variables and files of options, the comparison over ranks and the
// Python package are made from it. A test compares the sentences and defaults of gradtune.h, of wrap() in Python and of
// the README with it (tests/structure/tables.py).
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "engine/core/result.h"
#include "gradtune/gradtune.h"
#include "hooks/settings.h"

namespace gradtune {

// The type of an option: the member of Options that holds it, and the numbers that are allowed.
struct Flag {
  std::optional<bool> Options::*member;
};
struct Whole {
  std::optional<int64_t> Options::*member;
  int64_t low, high;
  const char* unit = "";  // as it follows "a whole number": " of steps"
};
struct Real {
  std::optional<double> Options::*member;
  double low, high;
  const char* unit = "";
};
struct Text {
  std::optional<std::string> Options::*member;
};
struct Texts {
  std::optional<std::vector<std::string>> Options::*member;
};
using OptionType = std::variant<Flag, Whole, Real, Text, Texts>;
using OptionValue = std::variant<bool, int64_t, double, std::string, std::vector<std::string>>;

struct OptionRow {
  const char* name;       // its variable is GRADTUNE_<NAME>
  const char* otherwise;  // the default, in words
  const char* sentence;   // its meaning
  OptionType type;
  // Checks the value further and stores it. The value has the row's type and is in its range. Rows are taken in the
  // order of the table. The error says which values are allowed.
  core::Status (*take)(const OptionValue& value, Settings& settings);
  // The part of the value that all ranks have to have alike; null if each rank may have its own value.
  std::string (*agreed)(const Settings& settings) = nullptr;
};

// Options that most users need come first.
std::span<const OptionRow> option_table();
const OptionRow* find_option(std::string_view name);  // null: there is none
std::vector<std::string_view> option_names();

// The value of an argument, a number also if it is out of range; none if it is not given.
std::optional<OptionValue> given_in(const Options& options, const OptionRow& row);
// Converts the text of a variable or a file. The error says which values are allowed.
core::Result<OptionValue> parse(const OptionRow& row, std::string_view text);
// Checks that a number is in its range, and takes the value.
core::Status take(const OptionRow& row, const OptionValue& value, Settings& settings);
// For messages: the value, and the numbers that a row of numbers allows.
std::string text_of(const OptionValue& value);
core::Error out_of_range(const OptionRow& row);

}  // namespace gradtune
