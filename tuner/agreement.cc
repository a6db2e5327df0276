// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
#include "tuner/agreement.h"

#include <algorithm>
#include <cmath>
#include <string>
#include <utility>

#include "engine/core/hash.h"
#include "tuner/error_budget.h"

namespace gradtune::tuner {
namespace {

// Positions in the control word. In a pair, a value is followed by its negation.
enum Position : size_t {
  kStep = 0,          // pair
  kAgreedHigh = 2,    // pair: upper and lower 32 bits of the hash that all ranks must share
  kAgreedLow = 4,     // pair
  kPreparedHigh = 6,  // pair: hash of the strategy that this rank prepared last, which others may still be preparing
  kPreparedLow = 8,   // pair
  kUnanswered = 10,   // preparing is under way
  kFailed = 11,       // preparing failed: 1 more than the rank
  kNonfinite = 12,
  kExcluded = 13,
  kStepMs = 14,
  kComputeMs = 15,
  kNegatedComputeMs = 16,
  kCommand = 17,  // kind, slot, bytes
  kSlowest = 20,  // compute time in whole microseconds and the rank, packed into one number
  kCommMs = 21,   // negated, so that the minimum counts
  kExcess = 22,   // share of the allowed value, bucket and kind packed into one number, so that the largest share
                  // counts; 0: no excess
  kNotDense = 23,
  kAlikeHigh = 24,    // pair
  kAlikeLow = 26,     // pair
  kExcessValue = 28,  // the same share, and the bucket's value
  kWorkMs = 29,
  kNewBuffers = 30,
  kNegatedStepMs = 31,
  kHasUpdates = 32,
  kGoesOn = 33,
  kUpdates = 34,  // pair
  kUsed = 36,
};
static_assert(kUsed == kControlWords);

// Below every half of a hash and its negation, so that a rank without a value takes no part in the comparison.
constexpr double kAbsent = -0x1p33;
constexpr double kMostMs = 1e12;
constexpr double kNoMs = -2 * kMostMs;
constexpr double kMostBytes = 0x1p30;  // of a strategy: a longer text is neither awaited nor given memory
constexpr double kMostUpdates = 0x1p53;
constexpr double kMostRanks = 0x1p20, kMostSlowUs = 0x1p32;

using core::Error;

void put_pair(ControlWord& word, size_t at, double value) {
  word[at] = value;
  word[at + 1] = -value;
}

// A double holds 53 bits, so a hash travels in two halves.
void put_hash(ControlWord& word, size_t high, size_t low, uint64_t hash) {
  put_pair(word, high, static_cast<double>(hash >> 32));
  put_pair(word, low, static_cast<double>(hash & 0xffffffffULL));
}

// Tells if all ranks that have a value have the same one.
bool is_common(const ControlWord& reduced, size_t at) {
  return reduced[at] == kAbsent || reduced[at] == -reduced[at + 1];
}

bool is_time(double ms) { return ms >= 0 && ms <= kMostMs; }

double slowest(double compute_ms, int32_t rank) {
  return std::floor(std::min(compute_ms * 1e3, kMostSlowUs - 1)) * kMostRanks + rank;
}

int32_t slowest_rank(double slowest) {
  return slowest >= 0 && slowest < kMostSlowUs * kMostRanks ? static_cast<int32_t>(std::fmod(slowest, kMostRanks)) : -1;
}

// Rules that reduce a value of each rank to a value of the report. One more row adds a field that ranks measure.
struct Reduced {
  Position at;
  double (*of_rank)(const LocalStep&);  // reduced by the maximum over ranks
  void (*take)(double, core::StepReport&);
};
constexpr Reduced kReduced[] = {
    {kExcluded, [](const LocalStep& local) { return local.excluded || !is_time(local.step_ms) ? 1.0 : 0.0; },
     [](double value, core::StepReport& report) { report.excluded = value > 0; }},
    {kStepMs, [](const LocalStep& local) { return is_time(local.step_ms) ? local.step_ms : 0; },
     [](double value, core::StepReport& report) { report.step_ms = value; }},
    {kNegatedStepMs, [](const LocalStep& local) { return is_time(local.step_ms) ? -local.step_ms : kNoMs; },
     [](double value, core::StepReport& report) {
       if (value > kNoMs) report.step_ms = (report.step_ms - value) / 2;  // behind the row of the longest
     }},
    {kComputeMs, [](const LocalStep& local) { return is_time(local.compute_ms) ? local.compute_ms : 0; },
     [](double value, core::StepReport& report) { report.compute_ms_max = value; }},
    {kNegatedComputeMs, [](const LocalStep& local) { return is_time(local.compute_ms) ? -local.compute_ms : -0.0; },
     [](double value, core::StepReport& report) { report.compute_ms_min = -value; }},
    {kSlowest,
     [](const LocalStep& local) { return is_time(local.compute_ms) ? slowest(local.compute_ms, local.rank) : -1; },
     [](double value, core::StepReport& report) { report.slowest_rank = slowest_rank(value); }},
    {kWorkMs, [](const LocalStep& local) { return is_time(local.work_ms) ? local.work_ms : 0; },
     [](double value, core::StepReport& report) { report.work_ms = value; }},
    {kCommMs,
     [](const LocalStep& local) { return is_time(local.comm_ms) && local.comm_ms > 0 ? -local.comm_ms : kNoMs; },
     [](double value, core::StepReport& report) { report.comm_ms = value > kNoMs ? std::max(0.0, -value) : 0; }},
};

bool is_integer_in(double value, double least, double most) {
  return value >= least && value <= most && value == std::floor(value);
}

// Both numbers hold whole units, so that each fits into the 53 bits of a double. The share comes first in both, so
// the maximum over ranks takes both from the same share. A broken bucket has the largest share: it is worse than all
// else.
constexpr double kShareUnits = 0x1p16, kMostShare = 0x1p25;
constexpr double kMostBuckets = 0x1p26, kKinds = 4;
constexpr auto kLastKind = core::Excess::Kind::broken;
constexpr double kValueUnits = 0x1p18, kMostValue = 0x1p28;
static_assert(kMostShare * kMostBuckets * kKinds == 0x1p53 && kMostShare * kMostValue == 0x1p53);

void put_excess(ControlWord& word, const core::Excess& excess) {
  if (excess.kind == core::Excess::Kind::none) return;
  const bool is_broken = excess.kind == core::Excess::Kind::broken;
  const double share = is_broken
                           ? kMostShare - 1
                           : std::clamp(std::ceil(excess.value / excess.allowed * kShareUnits), 1.0, kMostShare - 2);
  const double bucket = std::min<double>(excess.bucket, kMostBuckets - 1);
  const double value = std::clamp(std::round(excess.value * kValueUnits), 1.0, kMostValue - 1);
  word[kExcess] = (share * kMostBuckets + bucket) * kKinds + static_cast<double>(excess.kind);
  word[kExcessValue] = share * kMostValue + value;
}

core::Result<core::Excess> read_excess(const ControlWord& reduced) {
  double which = reduced[kExcess], what = reduced[kExcessValue];
  if (which == 0 && what == 0) return core::Excess{};
  const auto take = [](double& from, double most) {
    const double part = std::fmod(from, most);
    from = std::floor(from / most);
    return part;
  };
  const Error none = {Error::Code::corrupt,
                      "what stands in the control word for a bucket beyond its error is no such thing"};
  if (!is_integer_in(which, 0, 0x1p53 - 1) || !is_integer_in(what, 0, 0x1p53 - 1)) return none;
  core::Excess excess{.kind = static_cast<core::Excess::Kind>(static_cast<int>(take(which, kKinds)))};
  excess.bucket = static_cast<int32_t>(take(which, kMostBuckets));
  excess.value = take(what, kMostValue) / kValueUnits;
  const bool is_kind = excess.kind > core::Excess::Kind::none && excess.kind <= kLastKind;
  if (!is_kind || which == 0 || which != what) return none;
  const bool is_broken = excess.kind == core::Excess::Kind::broken;
  excess.allowed = is_broken ? ErrorBudget::kBroken : excess.value * kShareUnits / which;
  return excess;
}

core::Result<Command> read_command(const ControlWord& reduced) {
  const double kind = reduced[kCommand], slot = reduced[kCommand + 1], bytes = reduced[kCommand + 2];
  if (!is_integer_in(kind, 0, static_cast<double>(Command::Kind::commit)) || !is_integer_in(slot, 0, INT32_MAX) ||
      !is_integer_in(bytes, 0, kMostBytes)) {
    return Error{Error::Code::corrupt, "the command in the control word is none: a value is out of its range"};
  }
  return Command{.kind = static_cast<Command::Kind>(static_cast<int>(kind)),
                 .slot = static_cast<int32_t>(slot),
                 .bytes = static_cast<int64_t>(bytes)};
}

}  // namespace

std::string differing_ranks(std::span<const uint64_t> values) {
  std::string ranks;
  for (size_t r = 1; r < values.size(); ++r) {
    if (values[r] != values[0]) ranks += (ranks.empty() ? "" : ", ") + std::to_string(r);
  }
  return ranks;
}

Agreement::Agreement(int32_t slot, uint64_t strategy_hash)
    : Agreement({.slot = slot, .slots = {{slot, strategy_hash}}, .last_slot = slot}) {}

Agreement::Agreement(State state) : state_(std::move(state)) {
  core::check(state_.slots.contains(state_.slot), "the slot in force holds a strategy");
}

uint64_t Agreement::agreed_hash() const {
  core::Hasher hasher;
  hasher.add(static_cast<uint64_t>(state_.epoch));
  hasher.add(static_cast<uint64_t>(state_.slot));
  hasher.add(state_.slots.size());
  for (const auto& [slot, hash] : state_.slots) {
    hasher.add(static_cast<uint64_t>(slot));
    hasher.add(hash);
  }
  hasher.add(state_.pending ? static_cast<uint64_t>(state_.pending->slot) + 1 : 0);
  return hasher.value();
}

uint64_t Agreement::identity() const {
  core::Hasher hasher;
  hasher.add(agreed_hash());
  if (state_.pending) hasher.add(state_.pending->hash.value_or(0));
  return hasher.value();
}

ControlWord Agreement::contribute(const LocalStep& local, const Command& announced) const {
  ControlWord word{};
  put_pair(word, kStep, static_cast<double>(local.step));
  put_hash(word, kAgreedHigh, kAgreedLow, agreed_hash());
  std::fill_n(word.begin() + kPreparedHigh, 4, kAbsent);
  if (state_.pending) {
    if (state_.pending->hash) put_hash(word, kPreparedHigh, kPreparedLow, *state_.pending->hash);
    word[kUnanswered] = state_.pending->answered ? 0 : 1;
    word[kFailed] = state_.pending->answered && !state_.pending->hash ? local.rank + 1.0 : 0;
  }
  word[kNonfinite] = local.finite ? 0 : 1;
  for (const Reduced& each : kReduced) word[each.at] = each.of_rank(local);
  put_excess(word, local.excess);
  word[kNotDense] = local.not_dense ? 1 : 0;
  word[kNewBuffers] = local.new_buffers ? 1 : 0;
  word[kHasUpdates] = local.round.has_updates ? 1 : 0;
  word[kGoesOn] = local.round.goes_on ? 1 : 0;
  put_pair(word, kUpdates, static_cast<double>(local.updates));
  put_hash(word, kAlikeHigh, kAlikeLow, local.alike);
  word[kCommand] = static_cast<double>(announced.kind);
  word[kCommand + 1] = announced.slot;
  word[kCommand + 2] = static_cast<double>(announced.bytes);
  return word;
}

core::Result<Verdict> Agreement::receive(const LocalStep& local, const ControlWord& reduced) {
  const std::string where = "in the control word after step " + std::to_string(local.step);
  if (!std::all_of(reduced.begin(), reduced.end(), [](double value) { return std::isfinite(value); })) {
    return Error{Error::Code::corrupt, "a value that is not finite stands " + where};
  }
  if (!is_common(reduced, kStep)) return Error{Error::Code::mismatch, "ranks are in different steps, seen " + where};
  if (!is_common(reduced, kAlikeHigh) || !is_common(reduced, kAlikeLow)) {
    return Error{Error::Code::mismatch,
                 "ranks differ in the shape or dtype of a buffer, or in the optimizers that stepped, seen " + where};
  }
  if (!is_common(reduced, kAgreedHigh) || !is_common(reduced, kAgreedLow)) {
    return Error{Error::Code::mismatch, "ranks differ in epoch, strategy in force or prepared strategies, seen " +
                                            where + "; this rank is in epoch " + std::to_string(state_.epoch) +
                                            ", slot " + std::to_string(state_.slot)};
  }
  if (!is_common(reduced, kPreparedHigh) || !is_common(reduced, kPreparedLow)) {
    return Error{Error::Code::mismatch, "ranks received different strategies for slot " +
                                            std::to_string(state_.pending ? state_.pending->slot : -1) + ", seen " +
                                            where};
  }
  core::Result<Command> command = read_command(reduced);
  if (!command) return command.error();
  if (!is_integer_in(reduced[kFailed], 0, kMostRanks)) {
    return Error{Error::Code::corrupt, "the rank that could not prepare a strategy is none, seen " + where};
  }
  if (!is_integer_in(reduced[kUpdates], 0, kMostUpdates)) {
    return Error{Error::Code::corrupt, "the number of updates is none, seen " + where};
  }
  const core::Result<core::Excess> excess = read_excess(reduced);
  if (!excess) return excess.error();

  Verdict verdict;
  verdict.report = {
      .step = local.step, .slot = state_.last_slot, .excess = excess.value(), .finite = state_.last_finite};
  for (const Reduced& each : kReduced) each.take(reduced[each.at], verdict.report);
  if (!state_.begun || !is_common(reduced, kUpdates)) verdict.report.excluded = true;
  verdict.finite = reduced[kNonfinite] == 0;
  verdict.not_dense = reduced[kNotDense] > 0;
  verdict.new_buffers = reduced[kNewBuffers] > 0;
  verdict.round = {.has_updates = reduced[kHasUpdates] > 0, .goes_on = reduced[kGoesOn] > 0};
  verdict.updates = static_cast<int64_t>(reduced[kUpdates]);
  verdict.command = command.value();
  state_.begun = true;
  state_.last_slot = state_.slot;
  state_.last_finite = verdict.finite;

  verdict.failed_rank = settle_pending(reduced);
  if (core::Status status = carry_out(verdict.command); !status) return status.error();
  verdict.report.prepared = !state_.pending && !state_.failed_slot;
  verdict.report.failed = state_.failed_slot.has_value();
  return verdict;
}

// Once every rank has answered, the slot is ready on all ranks or on none.
std::optional<int32_t> Agreement::settle_pending(const ControlWord& reduced) {
  if (!state_.pending || reduced[kUnanswered] > 0) return {};
  const Pending settled = *std::exchange(state_.pending, std::nullopt);
  if (reduced[kFailed] <= 0) {
    state_.slots[settled.slot] = *settled.hash;
    return {};
  }
  state_.failed_slot = settled.slot;
  return static_cast<int32_t>(reduced[kFailed]) - 1;
}

core::Status Agreement::carry_out(Command& command) {
  const auto refuse = [&](const std::string& why) {
    return Error{Error::Code::corrupt, "the command announced for slot " + std::to_string(command.slot) + " " + why};
  };
  switch (command.kind) {
    case Command::Kind::keep: return {};
    case Command::Kind::prepare:
      if (state_.slots.contains(command.slot)) return refuse("would prepare it, but it holds a strategy");
      state_.pending = Pending{.slot = command.slot, .answered = false, .hash = {}};
      state_.failed_slot.reset();
      return {};
    case Command::Kind::run:
    case Command::Kind::commit:
      if (!state_.slots.contains(command.slot)) {
        command = {};
        return {};
      }
      state_.slot = command.slot;
      ++state_.epoch;
      return {};
    case Command::Kind::drop:
      if (command.slot == state_.slot) return refuse("would drop it, but it is in force");
      state_.slots.erase(command.slot);
      if (state_.pending && state_.pending->slot == command.slot) state_.pending.reset();
      if (state_.failed_slot == command.slot) state_.failed_slot.reset();
      return {};
  }
  return refuse("is unknown");
}

void Agreement::prepared(int32_t slot, std::optional<uint64_t> strategy_hash) {
  if (state_.pending && state_.pending->slot == slot) {
    state_.pending->answered = true;
    state_.pending->hash = strategy_hash;
    return;
  }
  if (state_.begun) return;  // taken back in the meantime
  core::check(strategy_hash.has_value(), "a slot that is ready from the start has a strategy");
  state_.slots[slot] = *strategy_hash;
}

}  // namespace gradtune::tuner
