// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
#include "tuner/journal.h"

#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <nlohmann/json.hpp>

namespace gradtune::tuner {
namespace {

using nlohmann::ordered_json;

// Numbers that JSON does not have become null, and bytes that are not UTF-8 a replacement character.
std::string dump(const ordered_json& json) { return json.dump(-1, ' ', false, ordered_json::error_handler_t::replace); }

core::Error failed(std::string_view what, const std::string& path) {
  return {core::Error::Code::io, fmt::format("journal: can not {} {}: {}", what, path, std::strerror(errno))};
}

}  // namespace

std::string journal_line(const JournalHeader& header) {
  return dump({{"schema", "gradtune.journal/1"},
               {"world_size", header.world_size},
               {"fidelity", core::to_string(header.fidelity)},
               {"seed", header.seed},
               {"model", fmt::format("{:016x}", header.model)},
               {"policy", header.policy},
               {"network", header.network}});
}

std::string journal_line(const core::StepReport& report, Stage stage) {
  return dump({{"kind", "step"},
               {"step", report.step},
               {"stage", to_string(stage)},
               {"slot", report.slot},
               {"step_ms", report.step_ms},
               {"compute_ms_max", report.compute_ms_max},
               {"compute_ms_min", report.compute_ms_min},
               {"finite", report.finite},
               {"excluded", report.excluded},
               {"prepared", report.prepared}});
}

std::string journal_line(const Decision& decision) {
  return dump({{"kind", "decision"},
               {"step", decision.step},
               {"stage", to_string(decision.stage)},
               {"what", decision.what},
               {"label", decision.label},
               {"value", decision.value}});
}

std::string journal_plan_line(int64_t step, int32_t slot, uint64_t strategy_hash, std::string_view strategy_file) {
  std::string line =
      fmt::format(R"({{"kind":"plan","step":{},"slot":{},"hash":"{:016x}","strategy":)", step, slot, strategy_hash);
  // In JSON a line's end is never part of a text, so a blank means the same.
  for (char c : strategy_file) line += c == '\n' ? ' ' : c;
  return line + "}";
}

core::Result<std::unique_ptr<Journal>> Journal::open(const std::string& path, const JournalHeader& header,
                                                     int flush_lines) {
  std::FILE* file = std::fopen(path.c_str(), "we");
  if (file == nullptr) return failed("open", path);
  std::unique_ptr<Journal> journal(new Journal(path, file, flush_lines));
  journal->buffer_ = journal_line(header) + "\n";
  if (core::Status status = journal->flush(); !status) return status.error();
  return journal;
}

Journal::Journal(std::string path, std::FILE* file, int flush_lines)
    : path_(std::move(path)), file_(file), flush_lines_(std::max(flush_lines, 1)) {}

Journal::~Journal() {
  (void)flush();
  std::fclose(file_);
}

core::Status Journal::write(const std::string& line) {
  if (!status_) return status_;
  buffer_ += line;
  buffer_ += '\n';
  return ++lines_ < flush_lines_ ? status_ : flush();
}

core::Status Journal::flush() {
  if (!status_ || buffer_.empty()) return status_;
  if (std::fwrite(buffer_.data(), 1, buffer_.size(), file_) != buffer_.size() || std::fflush(file_) != 0) {
    status_ = failed("write", path_);
  }
  buffer_.clear();
  lines_ = 0;
  return status_;
}

}  // namespace gradtune::tuner
