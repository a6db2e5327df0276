// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// A step as a picture: spans in the format that Chrome's about:tracing and Perfetto open (JSON, "Trace Event Format",
// complete events), one row for each of those who do things, and one for each message while it travels.
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
