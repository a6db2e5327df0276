// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// A strategy file with random buckets, programs and order, for a job to start from.
#pragma once

#include <torch/torch.h>

#include <set>
#include <string>

#include "tests/hooks/fuzz/job_plan.h"

namespace gradtune::test {

// The module's trained parameters are the tensors, in random order. Gradients of those in `sparse` are sparse.
void write_random_strategy(const OptionsPlan& plan, int ranks, uint64_t seed, const torch::nn::Module& module,
                           const std::string& file, const std::set<std::string>& sparse = {});

}  // namespace gradtune::test
