// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// `gradtune cost`: fits a cost file for `gradtune replay` to the operation times in a job's journal.
#pragma once

#include <string>

#include "engine/core/result.h"

namespace gradtune::tuner {

// Writes the file and returns the text to print: every rate with its number of samples and their distance from it.
core::Result<std::string> write_cost(const std::string& journal, const std::string& output);

}  // namespace gradtune::tuner
