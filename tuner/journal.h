// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// The journal (JSON lines, schema "gradtune.journal/1"): what the tuner saw and decided, so that a run can be
// explained, replayed, and each strategy that it tried be taken out and run again. The first line is the header; every
// other one has a "kind": "step" (a report), "decision", or "plan" (a strategy that was put into a slot, as a strategy
// file in "strategy").
#pragma once

#include <cstdint>
#include <cstdio>
#include <memory>
#include <string>
#include <string_view>

#include "engine/core/compressor.h"
#include "engine/core/measurement.h"
#include "engine/core/result.h"
#include "tuner/tuner.h"

namespace gradtune::tuner {

struct JournalHeader {
  int world_size = 1;
  core::Fidelity fidelity = core::Fidelity::half;
  uint64_t seed = 0;
  uint64_t model = 0;  // GradientTable::fingerprint()
  std::string policy = {};
  std::string network = {};  // how the ranks are connected, in words; empty where nobody said
};

// One line each, without its end.
std::string journal_line(const JournalHeader& header);
std::string journal_line(const core::StepReport& report, Stage stage);
std::string journal_line(const Decision& decision);
// `strategy_file` is the text of tuner/strategy_file.h.
std::string journal_plan_line(int64_t step, int32_t slot, uint64_t strategy_hash, std::string_view strategy_file);

// Writes lines to a file, some at a time. Not for several threads. After an error, which every later call returns
// again, nothing more is written; training goes on without a journal.
class Journal {
 public:
  // Replaces what is in the file.
  static core::Result<std::unique_ptr<Journal>> open(const std::string& path, const JournalHeader& header,
                                                     int flush_lines = 64);
  ~Journal();  // writes what is left; ask `flush` to know whether that worked
  Journal(const Journal&) = delete;
  Journal& operator=(const Journal&) = delete;

  core::Status write(const std::string& line);
  core::Status flush();

 private:
  Journal(std::string path, std::FILE* file, int flush_lines);

  const std::string path_;
  std::FILE* const file_;
  const int flush_lines_;
  std::string buffer_;
  int lines_ = 0;
  core::Status status_;
};

}  // namespace gradtune::tuner
