// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
#include "hooks/c10d/call_log.h"

#include <algorithm>
#include <charconv>
#include <map>

namespace gradtune {
namespace {

constexpr std::array kCalls = {Call::backward,        Call::step, Call::broadcast_buffers, Call::save_checkpoint,
                               Call::load_checkpoint, Call::wrap};

// Removes the leading number from the text and returns it; -1 if the text does not begin with a number.
int64_t take_number(std::string_view& text) {
  int64_t number = -1;
  const auto parsed = std::from_chars(text.data(), text.data() + text.size(), number);
  if (parsed.ec != std::errc() || number < 0) return -1;
  text.remove_prefix(static_cast<size_t>(parsed.ptr - text.data()));
  return number;
}

// Maps each call's number to its text, such as "backward at step 3", from "7 backward at step 3\n8 step at step
// 3\n".
std::map<int64_t, std::string> parse(std::string_view text) {
  std::map<int64_t, std::string> calls;
  while (!text.empty()) {
    std::string_view line = text.substr(0, text.find('\n'));
    text.remove_prefix(std::min(line.size() + 1, text.size()));
    const int64_t number = take_number(line);
    const auto is_named = [&](Call call) { return line.starts_with(" " + std::string(to_string(call)) + " "); };
    if (number < 0 || line.size() > 64 || std::ranges::none_of(kCalls, is_named)) return {};
    calls[number] = line.substr(1);
  }
  return calls;
}

}  // namespace

std::string_view to_string(Call call) {
  switch (call) {
    case Call::backward: return "backward";
    case Call::step: return "step()";
    case Call::broadcast_buffers: return "broadcast_buffers()";
    case Call::save_checkpoint: return "save_checkpoint()";
    case Call::load_checkpoint: return "load_checkpoint()";
    case Call::wrap: return "wrap()";
  }
  return "?";
}

void CallLog::enter(Call call, int64_t step) { entries_[static_cast<size_t>(count_++ % kKept)] = {call, step}; }

std::string CallLog::text() const {
  std::string text;
  for (int64_t n = std::max<int64_t>(0, count_ - kKept); n < count_; ++n) {
    const Entry& entry = entries_[static_cast<size_t>(n % kKept)];
    text +=
        std::to_string(n) + " " + std::string(to_string(entry.call)) + " at step " + std::to_string(entry.step) + "\n";
  }
  return text;
}

std::string first_difference_of_calls(std::string_view one, int rank_of_one, std::string_view other,
                                      int rank_of_other) {
  const auto calls = parse(one), others = parse(other);
  for (const auto& [number, call] : calls) {
    const auto found = others.find(number);
    if (found == others.end() || found->second == call) continue;
    return "rank " + std::to_string(rank_of_one) + " is in " + call + ", where rank " + std::to_string(rank_of_other) +
           " is in " + found->second + "; all ranks have to make the same calls in the same order";
  }
  return "";
}

}  // namespace gradtune
