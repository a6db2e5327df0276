// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// Short jobs in which everything is random, by seed: model, network, pace of ranks, strategies, the commands of rank
// 0, ranks that cannot prepare a strategy, and steps in which some rank meets a NaN.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "tests/sim/job.h"

namespace gradtune::sim {

JobOptions random_job(uint64_t seed, int size);
// The same, with strategies of these options alone.
JobOptions random_job(uint64_t seed, int size, const std::vector<std::string>& options);

// The rank that meets a NaN in that step of that job.
std::optional<int> poisoned_rank(uint64_t seed, int size, int64_t step);

}  // namespace gradtune::sim
