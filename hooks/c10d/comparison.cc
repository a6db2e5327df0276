// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
#include "hooks/c10d/comparison.h"

#include <algorithm>

namespace gradtune {
namespace {

constexpr char kBetween = '\t', kEnd = '\n', kIs = '=';

// Names come from the user, so characters that serve as separators here are replaced in them.
std::string plain(std::string text) {
  std::ranges::replace_if(
      text, [](char c) { return c == kBetween || c == kEnd; }, ' ');
  return text;
}

std::vector<std::string_view> split(std::string_view text, char at) {
  std::vector<std::string_view> parts;
  while (!text.empty()) {
    const size_t end = std::min(text.find(at), text.size());
    parts.push_back(text.substr(0, end));
    text.remove_prefix(std::min(end + 1, text.size()));
  }
  return parts;
}

std::string on(std::string_view what, int rank) { return std::string(what) + " on rank " + std::to_string(rank); }

}  // namespace

std::string to_text(const std::vector<SharedThing>& things) {
  std::string text;
  for (const SharedThing& thing : things) {
    text += plain(thing.name);
    for (const auto& [property, value] : thing.properties) text += kBetween + plain(property) + kIs + plain(value);
    text += kEnd;
  }
  return text;
}

std::string first_difference(std::string_view one, int rank_of_one, std::string_view other, int rank_of_other) {
  const auto lines = split(one, kEnd), other_lines = split(other, kEnd);
  for (size_t l = 0; l < std::max(lines.size(), other_lines.size()); ++l) {
    const auto fields = split(l < lines.size() ? lines[l] : std::string_view(), kBetween);
    const auto other_fields = split(l < other_lines.size() ? other_lines[l] : std::string_view(), kBetween);
    if (fields == other_fields) continue;
    const std::string_view name = fields.empty() ? "nothing more" : fields[0];
    const std::string_view other_name = other_fields.empty() ? "nothing more" : other_fields[0];
    if (name != other_name) return on(name, rank_of_one) + " stands where " + on(other_name, rank_of_other) + " does";
    for (size_t f = 1; f < std::max(fields.size(), other_fields.size()); ++f) {
      const std::string_view field = f < fields.size() ? fields[f] : std::string_view();
      const std::string_view other_field = f < other_fields.size() ? other_fields[f] : std::string_view();
      if (field == other_field) continue;
      const auto value = [](std::string_view of) { return of.substr(std::min(of.find(kIs) + 1, of.size())); };
      const std::string_view named = field.empty() ? other_field : field;
      const std::string_view property = named.substr(0, named.find(kIs));
      return std::string(name) + ": " + std::string(property) + " is " + on(value(field), rank_of_one) + " and " +
             on(value(other_field), rank_of_other);
    }
  }
  return "";
}

}  // namespace gradtune
