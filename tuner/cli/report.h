// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// `gradtune report`: what a job's journal says, as a page or as text.
#pragma once

#include <string>

#include "engine/core/result.h"

namespace gradtune::tuner {

struct ReportOptions {
  std::string journal;  // file
  std::string trace;    // file with ready times of the same model; empty: those of the journal
  std::string output;   // HTML file; empty: the report is printed in short
};

// Writes the page if there is a file for it, and gives back what to print.
core::Result<std::string> report(const ReportOptions& options);

}  // namespace gradtune::tuner
