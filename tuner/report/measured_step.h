// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// A step as lanes of spans: when rank 0 computed, and when the operations of each bucket ran. Plain data, from which
// pictures (charts.h) and traces (compared_steps.h) are made.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "tuner/files/journal_reader.h"

namespace gradtune::tuner {

// Lanes as they are shown, from the top. Encoding has all work before a collective, such as scaling and casting;
// decoding has all work after it. Without "host" they run with the gradient: on a CPU job, in the thread of backward.
enum class Lane : uint8_t { computation, encode, host_encode, copies, link, decode, host_decode };
std::string_view to_string(Lane lane);  // "computation" | "encode" | "encode on host cores" | ... | "link" | ...

struct Bar {
  Lane lane = Lane::encode;
  int32_t bucket = -1;  // -1: computation
  std::string what;     // "backward", "encode", "all_reduce", ...
  double begin_us = 0, end_us = 0;

  bool operator==(const Bar&) const = default;
};

// An operation of a bucket; `step` as in policies::TimedOp. Both must be those of the strategy.
Bar bar_of(const core::Strategy& strategy, const policies::TimedOp& op);

// The bars of one lane on lines, each in order of time. Bars on a line do not overlap, unless there would be more than
// `most` lines: then further bars share them.
struct LaneLines {
  Lane lane;
  std::vector<std::vector<Bar>> lines;
};
std::vector<LaneLines> in_lines(const std::vector<Bar>& bars, size_t most);  // lanes without bars are left out

// Times since the step began. It is drawn from the end of one exchange to the end of the next one, so that the update
// counts as computation at its beginning. Buckets that are due at the next forward pass end after it.
//
// A journal holds the times of operations, the length of the step, and the time for which ranks computed. It does
// not hold when they computed. So computation is drawn where rank 0's thread had no operation, from the beginning on.
struct MeasuredStep {
  int64_t step = 0;
  int32_t slot = 0;  // of the strategy
  double length_us = 0;
  std::vector<Bar> bars = {};  // computation in order of time, then operations as in the journal

  bool operator==(const MeasuredStep&) const = default;
};

// Among the timed steps of that slot the one whose length is nearest to `usual_ms`, or without that, to the median of
// all its steps; the last such step. Steps that count for nothing are left out (excluded, or with a gradient that was
// not finite). Nothing: no step is left. The slot must be among the journal's strategies.
std::optional<MeasuredStep> measured_step(const JournalFile& journal, int32_t slot,
                                          std::optional<double> usual_ms = {});

}  // namespace gradtune::tuner
