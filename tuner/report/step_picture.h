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
#include "tuner/report/measured_step.h"

namespace gradtune::tuner {

// Times since the first gradient was ready. Rank 0 does not record that moment. So the operations of the measured step
// (measured_step.h) are shifted until the first one begins when the predicted one does, or at 0 without a prediction.
struct StepPicture {
  int32_t slot = -1;  // of the strategy; -1: there is no picture
  std::vector<Bar> measured = {}, predicted = {};
  std::vector<std::string> lacks = {};  // reasons why one of them is missing; sentences
};

// The picture of the strategy in that slot, which must pass core::validate for the table. `table`: with ready times.
// `measured`: a step under that strategy, if the journal has one.
StepPicture picture_of(const JournalFile& journal, int32_t slot, const core::GradientTable& table,
                       const std::optional<MeasuredStep>& measured);

}  // namespace gradtune::tuner
