// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
#include "tuner/words.h"

#include <fmt/format.h>

#include <cmath>

namespace gradtune::tuner {

std::string number(double value) {
  if (!std::isfinite(value)) return "-";
  const double size = std::abs(value);
  if (size >= 1e7) return fmt::format("{:.3g}", value);
  const int digits = size >= 10 || size == 0 ? 1 : size >= 1 ? 2 : 3;
  return fmt::format("{:.{}f}", value, digits);
}

std::string in_ms(double ms) { return number(ms) + " ms"; }

std::string in_seconds(double ms) {
  constexpr double kMinute = 60e3, kHour = 3600e3;
  if (std::abs(ms) >= 2 * kHour) return number(ms / kHour) + " h";
  if (std::abs(ms) >= 10 * kMinute) return number(ms / kMinute) + " min";
  return number(ms / 1000) + " s";
}

std::string in_bytes(int64_t bytes) {
  const auto value = static_cast<double>(bytes);
  if (bytes < 1024) return fmt::format("{} B", bytes);
  if (bytes < 1024 * 1024) return fmt::format("{:.1f} KiB", value / 1024);
  if (bytes < 1024 * 1024 * 1024) return fmt::format("{:.1f} MiB", value / (1024 * 1024));
  return fmt::format("{:.2f} GiB", value / (1024 * 1024 * 1024));
}

std::string percent(double share) {
  return std::isfinite(share) ? fmt::format("{:.1f} %", 100 * share) : std::string("not known");
}

std::string count(int64_t value) {
  std::string text = std::to_string(value);
  const int first = value < 0 ? 1 : 0;
  for (int at = static_cast<int>(text.size()) - 3; at > first; at -= 3) text.insert(static_cast<size_t>(at), ",");
  return text;
}

std::string plural(int64_t value, std::string_view what) {
  return fmt::format("{} {}{}", count(value), what, value == 1 ? "" : "s");
}

std::string shortened(std::string_view text, size_t most) {
  constexpr std::string_view kMore = "...";
  if (text.size() <= most || most < kMore.size()) return std::string(text.substr(0, most));
  size_t length = most - kMore.size();
  while (length > 0 && (static_cast<unsigned char>(text[length]) & 0xC0U) == 0x80U) --length;
  return std::string(text.substr(0, length)) + std::string(kMore);
}

}  // namespace gradtune::tuner
