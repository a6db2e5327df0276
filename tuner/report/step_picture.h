// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// One step under a strategy, as measured on rank 0 and as predicted by the cost model: when the operations of every
// bucket began and ended. The model is fitted to the job's own operation times (policies/cost/cost_fit.h). So the
// prediction shows how the model explains these times, and is no forecast of an unseen job.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "tuner/files/journal_reader.h"

namespace gradtune::tuner {

// The resource of an operation, or the work of the user's thread.
enum class Row : uint8_t { computation, device, host, copies, network };

struct Bar {
  Row row = Row::device;
  int32_t bucket = -1;  // -1: computation
  std::string what;     // "backward", "encode", "all_reduce", ...
  double begin_us = 0, end_us = 0;

  bool operator==(const Bar&) const = default;
};

// Times since the first gradient was ready. Rank 0 does not record that moment. So measured times are shifted until
// the first operation begins when the predicted one does, or at 0 without a prediction.
struct StepPicture {
  int32_t slot = -1;  // of the strategy; -1: there is no picture
  std::vector<Bar> measured = {}, predicted = {};
  std::vector<std::string> lacks = {};  // reasons why one of them is missing; sentences
};

// The picture of the strategy in that slot, which must pass core::validate for the table. `table`: with ready times.
StepPicture picture_of(const JournalFile& journal, int32_t slot, const core::GradientTable& table);

}  // namespace gradtune::tuner
