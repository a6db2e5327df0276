// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// `gradtune report`: shows a job's journal as a page or as text.
#pragma once

#include <string>

#include "engine/core/result.h"

namespace gradtune::tuner {

struct ReportOptions {
  std::string journal;  // file name
  std::string trace;    // file with ready times of the same model; empty: those of the journal
  std::string output;   // HTML file; empty: a short report is printed
};

// Writes the page if a file is named, and returns the text to print.
core::Result<std::string> report(const ReportOptions& options);

}  // namespace gradtune::tuner
