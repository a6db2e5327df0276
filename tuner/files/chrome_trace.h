// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// A step as a picture. It has spans in the format of Chrome's about:tracing and Perfetto (JSON, "Trace Event
// Format", complete events). There is one row for each resource, and one for each message while it travels.
#pragma once

#include <span>
#include <string>

#include "engine/core/gradient_table.h"
#include "engine/core/strategy.h"
#include "policies/cost/timeline.h"

namespace gradtune::tuner {

std::string chrome_trace(std::span<const policies::Span> spans, const core::Strategy& strategy,
                         const core::GradientTable& table);

}  // namespace gradtune::tuner
