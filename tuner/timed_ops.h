// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// When a step's operations ran, by the executor's clock, as policies are told it: in tenths of us since the first of
// them began, without what compiling inserted between the steps of programs (but the scale before a sum, and copies
// between a device and the host); of collectives also what they really sent.
#pragma once

#include <vector>

#include "engine/exec/executor.h"
#include "policies/policy.h"

namespace gradtune::tuner {

// The time as journals have it, so that what a tuner is told can be told again.
double tenths(double us);

// `times`: of that program's operations, bucket after bucket, as Executor::op_times has them. Not empty.
std::vector<policies::TimedOp> timed_ops(const exec::Program& program, const std::vector<exec::OpTime>& times);

}  // namespace gradtune::tuner
