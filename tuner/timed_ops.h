// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// The times of a step's operations in the form that policies receive. Times are by the executor's clock, in tenths
// of us since the first operation began. Operations that compiling inserted between the steps of programs are left
// out, except the scale before a sum, and copies between a device and the host. Collectives also have the bytes that
// they really sent.
#pragma once

#include <vector>

#include "engine/exec/executor.h"
#include "policies/policy.h"

namespace gradtune::tuner {

// Rounds a time as journals do, so that the tuner can be told the same again.
double tenths(double us);

// `times`: of that program's operations, bucket after bucket, as Executor::op_times returns them. Not empty.
std::vector<policies::TimedOp> timed_ops(const exec::Program& program, const std::vector<exec::OpTime>& times);

}  // namespace gradtune::tuner
