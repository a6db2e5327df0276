// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// The strategy that a user would have without gradtune: all-reduce of 25 MiB buckets, the first of 1 MiB, overlapped
// with backward, tensors not split, as in PyTorch DDP. It uses the gradients' own dtype and, for fp32 gradients at
// fidelity half and above, also 16 bits on the wire.
#pragma once

#include <vector>

#include "engine/core/compressor.h"
#include "engine/core/gradient_table.h"
#include "policies/space/candidate.h"

namespace gradtune::policies {

// One or two candidates, the plain form first, with labels "all_reduce baseline" and "bf16 all_reduce baseline".
std::vector<Candidate> baselines(const core::GradientTable& table, core::Fidelity fidelity);

// The strategy with that bucket sent by one all-reduce, at the position in the order of its former first collective.
// Its option is the baseline's for the bucket's first tensor, so it has 16 bits if the baseline does; without a
// baseline it has no codec. The partition and everything else stay.
core::Strategy sent_as_baseline(core::Strategy strategy, int32_t bucket, const core::Strategy& baseline = {});

// The same for each bucket whose gradients do not accept its option (core::takes).
core::Strategy with_taken_options(core::Strategy strategy, const core::GradientTable& table);

}  // namespace gradtune::policies
