// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
#include "tuner/cli/trace.h"

#include <fmt/format.h>

#include "tuner/files.h"
#include "tuner/journal_file.h"
#include "tuner/trace_file.h"

namespace gradtune::tuner {
namespace {

constexpr int64_t kMostJournalBytes = int64_t{1} << 30;

}  // namespace

core::Result<std::string> write_trace(const std::string& journal, const std::string& output) {
  const auto text = read_file(journal, kMostJournalBytes);
  if (!text) return text.error();
  const auto file = parse_journal(text.value());
  if (!file) return core::Error{file.error().code, journal + ": " + file.error().message};
  const auto trace = trace_of(file.value());
  if (!trace) return core::Error{trace.error().code, journal + ": " + trace.error().message};
  if (const core::Status written = write_file_atomically(output, to_json(trace.value())); !written)
    return written.error();
  return fmt::format("{}: {} tensors of model {}\n", output, trace.value().table.tensors.size(), trace.value().model);
}

}  // namespace gradtune::tuner
