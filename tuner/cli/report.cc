// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
#include "tuner/cli/report.h"

#include <fmt/format.h>

#include <filesystem>
#include <optional>
#include <vector>

#include "tuner/files/file_io.h"
#include "tuner/files/journal_reader.h"
#include "tuner/files/strict_json.h"
#include "tuner/files/trace_file.h"
#include "tuner/report/html.h"
#include "tuner/report/report.h"
#include "tuner/report/summary.h"

namespace gradtune::tuner {
namespace {

core::Result<std::optional<TraceFile>> read_trace(const std::string& path) {
  if (path.empty()) return std::optional<TraceFile>();
  const auto text = read_file(path, kJobLimits.bytes);
  if (!text) return text.error();
  auto trace = parse_trace(text.value());
  if (!trace) return core::Error{trace.error().code, path + ": " + trace.error().message};
  return std::optional(std::move(trace).value());
}

core::Status write_trace(const Report& report, const ReportOptions& options) {
  if (options.chrome.empty()) return {};
  const std::vector<TracedStep> steps = traced(report.pictures.compared, report.strategies);
  if (!steps.empty()) return write_file_atomically(options.chrome, chrome_trace(steps));
  return core::Error{core::Error::Code::invalid,
                     fmt::format("{}: it has no step to write to {}: the operations of no step of the baseline or of "
                                 "what runs at the end were timed",
                                 options.journal, options.chrome)};
}

}  // namespace

core::Result<std::string> report(const ReportOptions& options) {
  const auto journal = read_journal(options.journal);
  if (!journal) return journal.error();
  const auto trace = read_trace(options.trace);
  if (!trace) return trace.error();
  const auto made = make_report(journal.value(), trace.value());
  if (!made) return core::Error{made.error().code, options.trace + ": " + made.error().message};
  if (const core::Status written = write_trace(made.value(), options); !written) return written.error();
  if (options.output.empty()) return summary(made.value());
  const std::string page = to_html(made.value(), std::filesystem::path(options.journal).filename().string());
  if (const core::Status written = write_file_atomically(options.output, page); !written) return written.error();
  return fmt::format("{}: {}\n", options.output, headline(made.value()));
}

}  // namespace gradtune::tuner
