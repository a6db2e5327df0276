// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
#include "tuner/progress.h"

#include <fmt/format.h>

#include <algorithm>

#include "tuner/decision_words.h"

namespace gradtune::tuner {
namespace {

constexpr int64_t kLiveIntervalNs = 100'000'000;  // people cannot read more than ten a second

// To the start of the line; and clears from the cursor to its end.
constexpr std::string_view kReturn = "\r", kErase = "\x1b[K";

std::string_view meaning(core::Fidelity fidelity) {
  switch (fidelity) {
    case core::Fidelity::exact: return "fp32 sums, nothing lossy";
    case core::Fidelity::half: return "16 bits on the wire, nothing else lossy";
    case core::Fidelity::lossy: return "compressors that lose, with error feedback";
  }
  return "unknown";
}

// These decisions change the story.
bool is_turn(Decision::What what) {
  using What = Decision::What;
  switch (what) {
    case What::commit:
    case What::keep_baseline:
    case What::drop_imported:
    case What::drop_committed:
    case What::give_up:
    case What::warn: return true;
    default: return false;
  }
}

bool is_told(Decision::What what) {
  using What = Decision::What;
  switch (what) {
    case What::drift:
    case What::link:
    case What::density:
    case What::more_may_run:
    case What::straggler:
    case What::over_error_budget:
    case What::residual_runs_away:
    case What::broken:
    case What::not_finite:
    case What::repair:
    case What::run_instead:
    case What::keep_committed: return true;
    default: return false;
  }
}

// A finding becomes the reason in the story if it led to one.
bool is_reason(Decision::What what) {
  using What = Decision::What;
  return is_finding(what) || what == What::repair || what == What::run_instead;
}

}  // namespace

std::string start_line(core::Fidelity fidelity, const std::vector<core::CompressorSpec>& codecs,
                       std::string_view policy, std::string_view transport) {
  std::string names;
  for (const core::CompressorSpec& codec : codecs) names += (names.empty() ? "" : ", ") + core::to_string(codec);
  return fmt::format("gradtune: fidelity {} ({}), compressors {}, policy {}{}{}", core::to_string(fidelity),
                     meaning(fidelity), names.empty() ? "none" : names, policy,
                     transport.empty() ? "" : ", gradients over ", transport);
}

std::string stage_line(Stage stage, int64_t step) { return fmt::format("gradtune: step {}: {}", step, doing(stage)); }

std::string live_line(Stage stage, double progress, int64_t step, double step_ms, std::string_view label) {
  return fmt::format("gradtune: step {}: {}, {:.0f} %: {:.1f} ms, {}", step, doing(stage),
                     100 * std::clamp(progress, 0.0, 1.0), step_ms, label);
}

std::vector<std::string> lines_of(const std::vector<Decision>& decisions, const Standing& standing) {
  const bool has_turned = std::ranges::any_of(decisions, is_turn, &Decision::what);
  std::vector<std::string> lines;
  const auto add = [&](const std::string& words) {
    lines.push_back(fmt::format("gradtune: step {}: {}", decisions.back().step, words));
  };
  for (const Decision& decision : decisions) {
    if (is_told(decision.what) && !(has_turned && is_reason(decision.what))) add(in_words(decision));
  }
  if (has_turned) add(in_words(standing));
  return lines;
}

std::string final_line(const Standing& standing, Stage stage) {
  const bool is_under_way = stage != Stage::watch && standing.state != Standing::State::pinned;
  return fmt::format("gradtune: {}{}{}", in_words(standing), is_under_way ? "; tuning ended while " : "",
                     is_under_way ? doing(stage) : "");
}

Progress::Progress(Write write, bool is_terminal, const core::Clock& clock)
    : write_(std::move(write)), is_terminal_(is_terminal), clock_(clock) {}

void Progress::start(core::Fidelity fidelity, const std::vector<core::CompressorSpec>& codecs, std::string_view policy,
                     std::string_view transport) {
  print(start_line(fidelity, codecs, policy, transport));
}

void Progress::step(Stage stage, double progress, int64_t step, double step_ms, std::string_view label) {
  if (stage != stage_) {
    stage_ = stage;
    if (stage == Stage::watch) return;  // the decision is printed already
    print(stage_line(stage, step));
    next_live_ns_ = clock_.now_ns();
  }
  if (!is_terminal_ || stage == Stage::watch || clock_.now_ns() < next_live_ns_) return;
  next_live_ns_ = clock_.now_ns() + kLiveIntervalNs;
  write_(fmt::format("{}{}{}", kReturn, live_line(stage, progress, step, step_ms, label), kErase));
}

void Progress::decided(const std::vector<Decision>& decisions, const Standing& standing) {
  for (const std::string& line : lines_of(decisions, standing)) print(line);
}

void Progress::finish(const Standing& standing, Stage stage) { print(final_line(standing, stage)); }

void Progress::print(const std::string& line) {
  write_(is_terminal_ ? fmt::format("{}{}{}\n", kReturn, line, kErase) : line + "\n");
}

}  // namespace gradtune::tuner
