// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// One step under a strategy, as rank 0 measured it and as the cost model predicts it: when the operations of every
// bucket began and ended. The model is fitted to what the job's own operations took (policies/cost/cost_fit.h), so the
// prediction shows what the model makes of these times, and is no forecast of an unseen job.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "tuner/files/journal_reader.h"

namespace gradtune::tuner {

// Who does an operation, or what the user's thread does beside.
enum class Row : uint8_t { computation, device, host, copies, network };

struct Bar {
  Row row = Row::device;
  int32_t bucket = -1;  // -1: computation
  std::string what;     // "backward", "encode", "all_reduce", ...
  double begin_us = 0, end_us = 0;

  bool operator==(const Bar&) const = default;
};

// Times since the first gradient was ready. Rank 0 does not write that down: what was measured is shifted so that its
// first operation begins when that of the prediction does, or at 0 without a prediction.
struct StepPicture {
  int32_t slot = -1;  // of the strategy; -1: there is no picture
  std::vector<Bar> measured = {}, predicted = {};
  std::vector<std::string> lacks = {};  // why one of them is not there; sentences
};

// Of the strategy in that slot, which must pass core::validate for the table. `table`: with ready times.
StepPicture picture_of(const JournalFile& journal, int32_t slot, const core::GradientTable& table);

}  // namespace gradtune::tuner
