// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// `gradtune cost`: makes a cost file from what a job's journal says its operations took, for `gradtune replay`.
#pragma once

#include <string>

#include "engine/core/result.h"

namespace gradtune::tuner {

// Writes the file and gives back what to print: every rate with the number of samples and how far they were from it.
core::Result<std::string> write_cost(const std::string& journal, const std::string& output);

}  // namespace gradtune::tuner
