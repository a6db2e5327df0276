// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// The buckets of a step as spans in torch's profiler.
#pragma once

#include <vector>

#include "engine/core/clock.h"
#include "engine/exec/program.h"
#include "engine/exec/trace.h"

namespace gradtune {

// If a profiler watches this thread, it gets a span for each bucket, from its first operation to its last, with the
// name "gradtune::bucket N (COMPRESSOR)". The engine does not know LibTorch and works on several threads, so spans are
// made from its times, which are of that clock, once the step's work has ended. Operations without times, as on devices
// that measure none, are left out.
void show_buckets(const exec::Program& program, const std::vector<exec::OpTime>& times, const core::Clock& clock);

}  // namespace gradtune
