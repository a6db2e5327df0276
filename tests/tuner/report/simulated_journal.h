// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// Journals of simulated jobs, line by line as a job writes them: for tests of reports.
#pragma once

#include <cstdint>
#include <string>

#include "tests/policies/timeline_job.h"
#include "tuner/tuner.h"

namespace gradtune::tuner {

struct SimulatedJournal {
  std::string text;
  Outcome outcome;  // of the tuner, at the end
  Stage stage = Stage::observe;
  std::string chosen;  // label
};

// The reference job at fidelity lossy under policy auto. From step `slow_from` on the link has a tenth of its speed
// (negative: never). In step `over_at` a bucket of the committed strategy exceeds its error budget (negative:
// never).
SimulatedJournal reference_journal(int64_t steps, int64_t slow_from = -1, int64_t over_at = -1);

// The true times of that job elsewhere. In the journal it has four ranks, and links of 60 bytes a microsecond.
policies::testing::TimelineJob reference_truth(int ranks, double link_bytes_per_us);

// A job of 540 tensors with names that try to be markup. It starts from a strategy with a bucket for each tensor:
// some compressed, some of these on host cores, the last ones due at the next forward pass. Without a budget the
// strategy stays.
SimulatedJournal many_buckets_journal(int64_t steps, int budget_steps);

}  // namespace gradtune::tuner
