// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// Traces (JSON, schema "gradtune.trace/2"): the gradients of a recorded job in the order in which backward finished
// them, with "model" (text) and the members of table_json.h. Times are in us since the first gradient was ready.
// Published traces have no schema: {"model", "tensors": [{"name", "numel", "ready_us"}, ...]} are fp32 gradients of
// one dimension, and "order", "ready_us" and "source" may describe their origin. Files are untrusted: they are
// within kJobLimits of strict_json.h, and every number is in a stated range. A trace without gradients is refused.
#pragma once

#include <string>
#include <string_view>

#include "engine/core/gradient_table.h"
#include "engine/core/result.h"
#include "tuner/files/journal_reader.h"

namespace gradtune::tuner {

struct TraceFile {
  std::string model;
  core::GradientTable table;

  bool operator==(const TraceFile&) const = default;
};

// Errors give the place in the file, the value found and the values allowed.
core::Result<TraceFile> parse_trace(std::string_view text);
std::string to_json(const TraceFile& trace);

// The trace of a journal's job: its gradients in the order in which they were ready. A job that ended before their
// times were known is an error.
core::Result<TraceFile> trace_of(const JournalFile& journal);

}  // namespace gradtune::tuner
