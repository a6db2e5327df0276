// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
#include "tuner/files/replay_log.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <limits>
#include <utility>

namespace gradtune::tuner {
namespace {

static_assert(std::endian::native == std::endian::little, "numbers are written as they lie in memory");

// The byte before each report. Its lowest bits are the report's flags, in their order. Then comes a bit for each
// number (step, slot, rank) that follows as expected from the report before, then kMore. After the byte come the
// unexpected numbers, then the times. With kMore another byte follows: twice the number of timings before the
// report, plus 1 if there is an excess. Then come the timings, each a slot, a number of operations and the
// operations, and then the excess.
constexpr int kFirstNumber = 1 << core::count_fields<bool>(core::kStepReportFields);
constexpr int kMore = kFirstNumber << core::count_fields<int64_t, int32_t>(core::kStepReportFields);
static_assert(kMore == 128, "all bits of the byte are in use: one more flag or number needs a wider one");

constexpr int64_t kMostSteps = int64_t{1} << 48;
constexpr double kMostMs = 1e12;
constexpr size_t kChunkBytes = 64 << 10, kMostReportBytes = 96;  // of a report without timings
constexpr int kMostTimings = 127;
constexpr int32_t kMostOps = 1 << 24;

template <typename T>
void put(std::string& bytes, T value) {
  bytes.append(reinterpret_cast<const char*>(&value), sizeof value);
}

// The report that is assumed unless the log says otherwise.
core::StepReport expected_after(const core::StepReport& last) {
  core::StepReport expected = last;
  ++expected.step;
  return expected;
}

// Calls visit for each field that holds one of these types.
template <typename... Types, typename Visit>
void for_each_of(const Visit& visit) {
  core::for_each_field(core::kStepReportFields, [&](const auto& field) {
    if constexpr ((std::is_same_v<typename std::remove_cvref_t<decltype(field)>::Type, Types> || ...)) visit(field);
  });
}

void put_report(std::string& bytes, const core::StepReport& report, const core::StepReport& last, int timed,
                const std::string& timings) {
  const core::StepReport expected = expected_after(last);
  int head = 0, flag = 1, number = kFirstNumber;
  for_each_of<bool>([&](const auto& field) {
    if (report.*field.member) head |= flag;
    flag <<= 1;
  });
  for_each_of<int64_t, int32_t>([&](const auto& field) {
    if (report.*field.member == expected.*field.member) head |= number;
    number <<= 1;
  });
  const core::Excess& excess = report.excess;
  const int more = 2 * timed + (excess == core::Excess() ? 0 : 1);
  put(bytes, static_cast<uint8_t>(head | (more != 0 ? kMore : 0)));
  for_each_of<int64_t, int32_t>([&](const auto& field) {
    if (report.*field.member != expected.*field.member) put(bytes, report.*field.member);
  });
  for_each_of<double>([&](const auto& field) { put(bytes, report.*field.member); });
  if (more == 0) return;
  put(bytes, static_cast<uint8_t>(more));
  bytes += timings;
  if (more % 2 == 0) return;
  put(bytes, excess.kind);
  put(bytes, excess.bucket);
  put(bytes, excess.value);
  put(bytes, excess.allowed);
}

// Reads in a straight line; check `ok` once at the end.
class Reader {
 public:
  explicit Reader(std::string_view bytes) : bytes_(bytes) {}

  template <typename T>
  T get() {
    T value{};
    if (bytes_.size() < sizeof value) {
      ok_ = false;
      bytes_ = {};
      return value;
    }
    std::memcpy(&value, bytes_.data(), sizeof value);
    bytes_.remove_prefix(sizeof value);
    return value;
  }
  template <typename T>
  T get(T least, T most) {
    const T value = get<T>();
    if (value >= least && value <= most) return value;  // false for a NaN
    ok_ = false;
    return least;
  }

  bool ok() const { return ok_; }
  bool at_end() const { return bytes_.empty(); }

 private:
  std::string_view bytes_;
  bool ok_ = true;
};

std::vector<policies::TimedOp> get_ops(Reader& from) {
  std::vector<policies::TimedOp> ops;
  const auto us = [&] { return from.get<double>(-kMostMs, kMostMs); };
  for (int32_t count = from.get<int32_t>(0, kMostOps); count > 0 && from.ok(); --count) {
    const auto bucket = from.get<int32_t>(0, kMostOps), step = from.get<int32_t>(policies::kLeastStep, kMostOps);
    const double begin_us = us(), end_us = us();
    const auto bytes = from.get<int64_t>(-1, std::numeric_limits<int64_t>::max());
    ops.push_back({.bucket = bucket, .step = step, .begin_us = begin_us, .end_us = end_us, .bytes = bytes});
  }
  return ops;
}

// The largest allowed value of a number; at least -1, or 0 for a slot.
template <typename Value>
constexpr Value kMostOf = std::numeric_limits<Value>::max();
template <>
constexpr int64_t kMostOf<int64_t> = kMostSteps;

core::StepReport get_report(Reader& from, const core::StepReport& last, Told& told) {
  core::StepReport report = expected_after(last);
  report.excess = {};
  const auto head = from.get<uint8_t>();
  int flag = 1, number = kFirstNumber;
  for_each_of<bool>([&](const auto& field) {
    report.*field.member = (head & flag) != 0;
    flag <<= 1;
  });
  for_each_of<int64_t, int32_t>([&](const auto& field) {
    auto& value = report.*field.member;
    using Value = std::remove_reference_t<decltype(value)>;
    const Value least = field.kind == core::FieldKind::slot ? 0 : -1;
    if ((head & number) == 0) value = from.get<Value>(least, kMostOf<Value>);
    number <<= 1;
  });
  for_each_of<double>([&](const auto& field) { report.*field.member = from.get<double>(0, kMostMs); });
  const int more = (head & kMore) != 0 ? from.get<uint8_t>() : 0;
  for (int timing = more / 2; timing > 0 && from.ok(); --timing) {
    const auto slot = from.get<int32_t>(0, std::numeric_limits<int32_t>::max());
    told.timings.push_back({.report = told.reports.size(), .slot = slot, .ops = get_ops(from)});
  }
  if (more % 2 == 0) return report;
  report.excess.kind = static_cast<core::Excess::Kind>(from.get<uint8_t>(1, 3));
  report.excess.bucket = from.get<int32_t>(0, kMostOps);
  report.excess.value = from.get<double>(0, kMostMs);
  report.excess.allowed = from.get<double>(0, kMostMs);
  return report;
}

void add_answer(core::Hasher& answers, int64_t report, const Action& answer) {
  if (answer.command.kind == Command::Kind::keep) return;
  answers.add(static_cast<uint64_t>(report));
  answers.add(static_cast<uint64_t>(answer.command.kind));
  answers.add(static_cast<uint64_t>(answer.command.slot));
  if (answer.candidate) answers.add(core::hash(answer.candidate->strategy));
}

}  // namespace

void ReplayLog::add(int32_t slot, const std::vector<policies::TimedOp>& ops) {
  core::check(timed_ < kMostTimings, "so many operations are not timed between two steps");
  ++timed_;
  put(timings_, slot);
  put(timings_, static_cast<int32_t>(ops.size()));
  for (const auto& [bucket, step, begin_us, end_us, bytes] : ops) {
    put(timings_, bucket);
    put(timings_, step);
    put(timings_, begin_us);
    put(timings_, end_us);
    put(timings_, bytes);
  }
}

void ReplayLog::add(const core::StepReport& report, const Action& answer) {
  add_answer(answers_, size_, answer);
  const std::string timings = std::exchange(timings_, {});
  const int timed = std::exchange(timed_, 0);
  if (++size_ > most_reports_) {
    chunks_.clear();
    return;
  }
  if (chunks_.empty() || chunks_.back().size() + kMostReportBytes + timings.size() > kChunkBytes) {
    chunks_.emplace_back().reserve(std::max(kChunkBytes, kMostReportBytes + timings.size()));
  }
  put_report(chunks_.back(), report, last_, timed, timings);
  last_ = report;
}

std::string ReplayLog::bytes() const {
  std::string bytes;
  bytes.reserve(kMostReportBytes + chunks_.size() * kChunkBytes);
  put(bytes, size_);
  put(bytes, answers_.value());
  put(bytes, static_cast<uint8_t>(size_ <= most_reports_ ? 1 : 0));
  for (const std::string& chunk : chunks_) bytes += chunk;
  return bytes;
}

core::Result<Told> parse_replay_log(std::string_view bytes) {
  Reader from(bytes);
  const auto size = from.get<int64_t>(0, kMostSteps);
  Told told;
  told.answers = from.get<uint64_t>();
  told.is_whole = from.get<uint8_t>(0, 1) == 1;
  core::StepReport last;
  while (from.ok() && !from.at_end()) {
    last = get_report(from, last, told);
    told.reports.push_back(last);
  }
  if (!from.ok()) {
    return core::Error{core::Error::Code::corrupt,
                       fmt::format("report {} of the history is none: it is cut off, or a value is out of its range",
                                   told.reports.size())};
  }
  if (static_cast<int64_t>(told.reports.size()) != (told.is_whole ? size : 0)) {
    return core::Error{core::Error::Code::corrupt,
                       fmt::format("the history says that it has {} reports, it has {}", size, told.reports.size())};
  }
  return told;
}

core::Result<Action> replay(const Told& told, const std::function<Action(const core::StepReport&)>& on_step,
                            const std::function<void(const Timing&)>& learn_timing) {
  core::check(told.is_whole, "only a history that is whole can be told again");
  core::Hasher answers;
  Action answer;
  int64_t reports = 0;
  const auto answered = [&](const core::StepReport& report) {
    answer = on_step(report);
    add_answer(answers, reports++, answer);
  };
  tell(told.reports, told.timings, answered, learn_timing);
  if (answers.value() == told.answers) return answer;
  return core::Error{core::Error::Code::mismatch,
                     "told the same step times, the tuner decides otherwise than when they were recorded: this is "
                     "another version of the program, or a machine with another mathematical library"};
}

}  // namespace gradtune::tuner
