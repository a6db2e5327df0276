// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// The job of the tests that write and read journals.
#pragma once

#include <utility>

#include "tuner/job.h"

namespace gradtune::tuner {

inline Job journal_job(core::GradientTable table) {
  return {.table = std::move(table),
          .ranks = {.size = 4},
          .fidelity = core::Fidelity::lossy,
          .codecs = {{.name = "none"}, {.name = "topk", .parameter = 0.02}},
          .host_threads = 1,
          .policy = "mergecomp",
          .tuning = {.seed = 7, .lossy_after = 3}};
}

}  // namespace gradtune::tuner
