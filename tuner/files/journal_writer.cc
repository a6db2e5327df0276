// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
#include "tuner/files/journal_writer.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "engine/core/version.h"
#include "tuner/files/strategy_file.h"
#include "tuner/files/table_json.h"
#include "tuner/timed_ops.h"

namespace gradtune::tuner {
namespace {

using nlohmann::ordered_json;

// Numbers that JSON does not have become null, and bytes that are not UTF-8 a replacement character.
std::string dump(const ordered_json& json) { return json.dump(-1, ' ', false, ordered_json::error_handler_t::replace); }

// With four significant digits.
double rounded(double value) { return std::stod(fmt::format("{:.4g}", value)); }

core::Error failed(std::string_view what, const std::string& path) {
  return {core::Error::Code::io, fmt::format("journal: can not {} {}: {}", what, path, std::strerror(errno))};
}

}  // namespace

std::string journal_header(const Job& job, std::string_view network, std::string_view transport) {
  ordered_json codecs = ordered_json::array();
  for (const core::CompressorSpec& codec : job.codecs) codecs.push_back(core::to_string(codec));
  ordered_json tuning = {
      {"seed", job.tuning.seed}, {"budget_steps", job.tuning.budget_steps}, {"budget_share", job.tuning.budget_share}};
  if (job.tuning.lossy_after) tuning["lossy_after"] = *job.tuning.lossy_after;
  if (job.tuning.optimizers == core::OptimizerFamily::adaptive) tuning["adaptive"] = true;
  if (job.tuning.has_error_budget) tuning["error_budget"] = true;
  tuning["retune"] = job.tuning.retune;
  ordered_json header = {{"schema", kJournalSchema},
                         {"gradtune", core::version()},
                         {"world_size", job.ranks.size},
                         {"ranks_per_node", job.ranks.local_size},
                         {"fidelity", core::to_string(job.fidelity)},
                         {"compressors", std::move(codecs)},
                         {"host_threads", job.host_threads},
                         {"policy", job.policy},
                         {"model", fmt::format("{:016x}", job.table.fingerprint())},
                         {"network", network},
                         {"tuning", std::move(tuning)}};
  if (!transport.empty()) header["transport"] = transport;
  if (!job.codecs_from.empty()) header["compressors_from"] = job.codecs_from;
  if (job.memory_bytes < INT64_MAX) header["memory_budget"] = job.memory_bytes;
  if (job.forward_overlap) header["forward_overlap"] = true;
  const auto& [links, cores, collectives_at_once, on_device] = job.machine;
  header["collectives_at_once"] = collectives_at_once;
  if (cores.of_rank > 0) {
    header["cores"] = {{"of_rank", cores.of_rank}, {"computing", cores.computing}, {"network", cores.network}};
  }
  if (on_device.gradients) {
    header["device"] = {{"collectives", on_device.collectives}, {"kernels", on_device.kernels}};
  }
  if (links == policies::IdleLinks()) return dump(header);
  for (const auto& [name, link] :
       {std::pair("flat", links.flat), std::pair("inter", links.inter), std::pair("intra", links.intra)}) {
    header["idle_links"][name] = {
        {"message_us", link.message_us}, {"wait_us", link.wait_us}, {"byte_us", link.byte_us}};
  }
  return dump(header);
}

std::string journal_line(const core::GradientTable& table) {
  return fmt::format(R"({{"kind":"table",{}}})", table_members(table));
}

std::string journal_line(const core::StepReport& report, Stage stage) {
  ordered_json line = {{"kind", "step"}};
  core::for_each_field(core::kStepReportFields, [&](const auto& field) {
    if constexpr (std::is_same_v<decltype(report.*field.member), const core::Excess&>) {
      const core::Excess& excess = report.*field.member;
      if (excess.kind == core::Excess::Kind::none) return;
      line[field.name] = {{"what", to_string(excess.kind)},
                          {"bucket", excess.bucket},
                          {"value", excess.value},
                          {"allowed", excess.allowed}};
    } else {
      line[field.name] = report.*field.member;
    }
    if (field.kind == core::FieldKind::step) line["stage"] = to_string(stage);
  });
  return dump(line);
}

std::string journal_line(int64_t step, int32_t slot, const ErrorBudget::State& errors) {
  ordered_json medians = ordered_json::array(), ratios = ordered_json::array();
  for (const ErrorBudget::Bucket& bucket : errors.buckets) {
    medians.push_back(bucket.errors.count > 0 ? ordered_json(rounded(bucket.errors.median())) : ordered_json());
    ratios.push_back(bucket.ratios.count > 0 ? ordered_json(rounded(bucket.ratios.median())) : ordered_json());
  }
  return dump({{"kind", "loss"},
               {"step", step},
               {"slot", slot},
               {"errors", std::move(medians)},
               {"residuals", std::move(ratios)}});
}

std::string journal_line(const Decision& decision) {
  return dump({{"kind", "decision"},
               {"step", decision.step},
               {"stage", to_string(decision.stage)},
               {"what", to_string(decision.what)},
               {"label", decision.label},
               {"value", decision.value}});
}

std::string journal_timing_line(int64_t step, int32_t slot, const std::vector<policies::TimedOp>& ops) {
  ordered_json timed = ordered_json::array();
  for (const policies::TimedOp& op : ops) {
    timed.push_back({op.bucket, op.step, tenths(op.begin_us), tenths(op.end_us), op.bytes});
  }
  return dump({{"kind", "timing"}, {"step", step}, {"slot", slot}, {"ops", std::move(timed)}});
}

std::string journal_plan_line(int64_t step, int32_t slot, const Job& job, const policies::Candidate& candidate) {
  std::string line = fmt::format(R"({{"kind":"plan","step":{},"slot":{},"hash":"{:016x}","strategy":)", step, slot,
                                 core::hash(candidate.strategy));
  const StrategyFile file = strategy_file(job.table, job.ranks.size, job.fidelity, candidate.label, candidate.strategy);
  // In JSON a line's end is never part of a text, so a blank means the same.
  for (char c : to_json(file)) line += c == '\n' ? ' ' : c;
  return line + "}";
}

std::string journal_failure_line(int64_t step, std::string_view why) {
  return dump({{"kind", "failure"}, {"step", step}, {"why", why}});
}

std::string journal_line(const RoundChoice& choice) {
  ordered_json line{{"kind", "rounds"},
                    {"step", choice.step},
                    {"updates", choice.round.updates},
                    {"least", choice.allowed.least},
                    {"most", choice.allowed.most}};
  if (choice.round.fragments > 1) line["fragments"] = choice.round.fragments;
  if (choice.round.delay > 0) line["delay"] = choice.round.delay;
  if (!choice.allowed.delay) line["chooses_delay"] = true;
  if (choice.times) {
    line["exchange_ms"] = choice.times->exchange_ms;
    line["update_ms"] = choice.times->update_ms;
    line["work_ms"] = choice.times->work_ms;
  }
  return dump(line);
}

core::Result<JournalPlace> JournalPlace::claim(const std::string& path) {
  constexpr int kMost = 1000;
  const std::filesystem::path asked(path);
  for (int number = 1; number <= kMost; ++number) {
    std::filesystem::path each = asked;
    if (number > 1)
      each.replace_filename(fmt::format("{}.{}{}", asked.stem().string(), number, asked.extension().string()));
    const int file = ::open(each.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0666);
    if (file < 0) return failed("open", each.string());
    JournalPlace place(each.string(), file);
    struct stat about {};
    const bool is_file = ::fstat(file, &about) == 0 && S_ISREG(about.st_mode);  // several writers can share other kinds
    // If the file system has no locks, nobody can be kept out.
    if (!is_file || ::flock(file, LOCK_EX | LOCK_NB) == 0 || errno != EWOULDBLOCK) return place;
  }
  return core::Error{core::Error::Code::io,
                     fmt::format("journal: {} and {} more like it are being written", path, kMost - 1)};
}

JournalPlace::JournalPlace(JournalPlace&& other) noexcept
    : path_(std::move(other.path_)), file_(std::exchange(other.file_, -1)) {}

JournalPlace& JournalPlace::operator=(JournalPlace&& other) noexcept {
  std::swap(path_, other.path_);
  std::swap(file_, other.file_);
  return *this;
}

JournalPlace::~JournalPlace() {
  if (file_ >= 0) ::close(file_);
}

core::Result<std::unique_ptr<Journal>> Journal::open(const std::string& path, const std::string& header,
                                                     int flush_lines) {
  std::FILE* file = std::fopen(path.c_str(), "we");
  if (file == nullptr) return failed("open", path);
  std::unique_ptr<Journal> journal(new Journal(path, file, flush_lines));
  journal->buffer_ = header + "\n";
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
