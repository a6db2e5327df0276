// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// `gradtune explain`: says why each bucket of a strategy is sent as it is, what limits a step, and what would help.
#pragma once

#include <string>

#include "engine/core/result.h"

namespace gradtune::tuner {

struct ExplainOptions {
  std::string file;         // a journal, or a strategy file, which needs the next two
  std::string trace, cost;  // file names
};

// The text to print. A journal's strategy is the one that the job kept, or that runs meanwhile.
core::Result<std::string> explain(const ExplainOptions& options);

}  // namespace gradtune::tuner
