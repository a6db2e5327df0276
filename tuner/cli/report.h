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
  std::string chrome;   // file for the measured steps of the page as a Chrome trace; empty: none
};

// Writes the files that are named, and returns the text to print. A trace of a journal without a timed step is an
// error.
core::Result<std::string> report(const ReportOptions& options);

}  // namespace gradtune::tuner
