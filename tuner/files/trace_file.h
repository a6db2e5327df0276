// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// Traces (JSON): the gradients of a recorded job in the order in which backward finished them: {"model": text,
// "tensors": [{"name", "numel", "ready_us"}, ...]}, times in us since the first one was ready. "order", "ready_us" and
// "source" may say in words where it comes from. Files are untrusted: limits as for strategy files, every number in a
// stated range.
#pragma once

#include <string>
#include <string_view>

#include "engine/core/gradient_table.h"
#include "engine/core/result.h"
#include "tuner/files/journal_reader.h"

namespace gradtune::tuner {

struct TraceFile {
  std::string model;
  core::GradientTable table;  // fp32, each tensor of one dimension

  bool operator==(const TraceFile&) const = default;
};

// Errors say where in the file, what was found and what is allowed.
core::Result<TraceFile> parse_trace(std::string_view text);
std::string to_json(const TraceFile& trace);

// The trace of a journal's job: its gradients in the order in which they were ready. An error where the job ended
// before their times were known.
core::Result<TraceFile> trace_of(const JournalFile& journal);

}  // namespace gradtune::tuner
