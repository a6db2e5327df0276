// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
#include "tuner/cli/trace.h"

#include <fmt/format.h>

#include "tuner/files/file_io.h"
#include "tuner/files/journal_reader.h"
#include "tuner/files/trace_file.h"

namespace gradtune::tuner {

core::Result<std::string> write_trace(const std::string& journal, const std::string& output) {
  const auto file = read_journal(journal);
  if (!file) return file.error();
  const auto trace = trace_of(file.value());
  if (!trace) return core::Error{trace.error().code, journal + ": " + trace.error().message};
  if (const core::Status written = write_file_atomically(output, to_json(trace.value())); !written)
    return written.error();
  return fmt::format("{}: {} tensors of model {}\n", output, trace.value().table.tensors.size(), trace.value().model);
}

}  // namespace gradtune::tuner
