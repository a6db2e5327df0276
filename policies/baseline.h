// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// What a user would have without gradtune (design, "Baseline"): all-reduce of 25 MiB buckets, the first of 1 MiB,
// overlapped with backward, tensors not split, as PyTorch DDP does it. In the gradients' own dtype, and for fp32
// gradients at fidelity half and above also with 16 bits on the wire.
#pragma once

#include <vector>

#include "policies/policy.h"

namespace gradtune::policies {

// One or two candidates, the plain form first, labels "all_reduce baseline" and "bf16 all_reduce baseline".
std::vector<Candidate> baselines(const core::GradientTable& table, core::Fidelity fidelity);

}  // namespace gradtune::policies
