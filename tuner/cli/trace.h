// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// `gradtune trace`: makes a trace of a job from its journal, for `gradtune replay`.
#pragma once

#include <string>

#include "engine/core/result.h"

namespace gradtune::tuner {

// Writes the file and returns the text to print.
core::Result<std::string> write_trace(const std::string& journal, const std::string& output);

}  // namespace gradtune::tuner
