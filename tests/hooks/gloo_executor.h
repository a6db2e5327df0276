// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// Executors of ranks that are processes, with Gloo between them.
#pragma once

#include <string>
#include <vector>

#include "tests/engine/exec/fleet.h"
#include "tests/hooks/jobs.h"

namespace gradtune::test {

// The communicators of that rank of `size`, in nodes of `local_size`. Each prefix is used once.
exec::RankGroups connect(const c10::intrusive_ptr<c10d::Store>& store, int rank, int size, int local_size,
                         const std::string& prefix);

inline std::vector<double> in_fp64(const exec::Values& values) { return {values.begin(), values.end()}; }

// Over all ranks.
std::vector<double> summed(comm::Communicator& group, std::vector<double> values);

}  // namespace gradtune::test
