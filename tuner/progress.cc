// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
#include "tuner/progress.h"

#include <fmt/format.h>

#include <algorithm>

#include "tuner/decision_words.h"

namespace gradtune::tuner {
namespace {

constexpr int64_t kLiveIntervalNs = 100'000'000;  // ten a second are as many as one can read

// To the start of the line; and from the cursor to its end, blank.
constexpr std::string_view kReturn = "\r", kErase = "\x1b[K";

std::string_view meaning(core::Fidelity fidelity) {
  switch (fidelity) {
    case core::Fidelity::exact: return "fp32 sums, nothing lossy";
    case core::Fidelity::half: return "16 bits on the wire, nothing else lossy";
    case core::Fidelity::lossy: return "compressors that lose, with error feedback";
  }
  return "unknown";
}

// "bf16 all_reduce baseline" -> "bf16 all_reduce".
std::string_view without_role(std::string_view label) {
  constexpr std::string_view kRole = " baseline";
  if (label.ends_with(kRole)) label.remove_suffix(kRole.size());
  return label;
}

}  // namespace

std::string start_line(core::Fidelity fidelity, const std::vector<core::CompressorSpec>& codecs,
                       std::string_view policy) {
  std::string names;
  for (const core::CompressorSpec& codec : codecs) names += (names.empty() ? "" : ", ") + core::to_string(codec);
  return fmt::format("gradtune: fidelity {} ({}), compressors {}, policy {}", core::to_string(fidelity),
                     meaning(fidelity), names.empty() ? "none" : names, policy);
}

std::string stage_line(Stage stage, int64_t step) { return fmt::format("gradtune: step {}: {}", step, doing(stage)); }

std::string live_line(Stage stage, double progress, int64_t step, double step_ms, std::string_view label) {
  return fmt::format("gradtune: step {}: {}, {:.0f} %: {:.1f} ms, {}", step, doing(stage),
                     100 * std::clamp(progress, 0.0, 1.0), step_ms, label);
}

std::string final_line(const Outcome& outcome, std::string_view baseline_label, std::string_view why_baseline) {
  const std::string cost =
      fmt::format("tuning took {} steps and cost {:.1f} s ({:.2g} % of {} baseline steps)", outcome.steps,
                  outcome.cost_ms / 1000, 100 * cost_share(outcome), kShortJobSteps);
  if (!outcome.committed) {
    return fmt::format("gradtune: the baseline stays, {} at {:.1f} ms a step: {}; {}", without_role(baseline_label),
                       outcome.baseline_ms, why_baseline, cost);
  }
  return fmt::format(
      "gradtune: committed {}: {:.1f} -> {:.1f} ms a step (gain {:.1f} %, 95 % interval {:.1f} to "
      "{:.1f} %), baseline {}; {}",
      outcome.label, outcome.baseline_ms, outcome.committed_ms, 100 * outcome.gain, 100 * outcome.gain_low,
      100 * outcome.gain_high, without_role(baseline_label), cost);
}

std::string change_line(const Decision& decision) {
  using What = Decision::What;
  switch (decision.what) {
    case What::drift:
    case What::link:
    case What::density:
    case What::more_may_run:
    case What::straggler:
    case What::drop_committed:
    case What::over_error_budget:
    case What::residual_runs_away:
    case What::repair:
    case What::keep_committed: return fmt::format("gradtune: step {}: {}", decision.step, in_words(decision));
    default: return "";
  }
}

std::string unfinished_line(Stage stage, std::string_view label) {
  return fmt::format("gradtune: training ended while {}; nothing was confirmed, {} was in force", doing(stage), label);
}

Progress::Progress(Write write, bool is_terminal, const core::Clock& clock)
    : write_(std::move(write)), is_terminal_(is_terminal), clock_(clock) {}

void Progress::start(core::Fidelity fidelity, const std::vector<core::CompressorSpec>& codecs,
                     std::string_view policy) {
  print(start_line(fidelity, codecs, policy));
}

void Progress::step(Stage stage, double progress, int64_t step, double step_ms, std::string_view label) {
  if (stage != stage_) {
    stage_ = stage;
    if (stage == Stage::watch) return;  // the last line says it all
    print(stage_line(stage, step));
    next_live_ns_ = clock_.now_ns();
  }
  if (!is_terminal_ || stage == Stage::watch || clock_.now_ns() < next_live_ns_) return;
  next_live_ns_ = clock_.now_ns() + kLiveIntervalNs;
  write_(fmt::format("{}{}{}", kReturn, live_line(stage, progress, step, step_ms, label), kErase));
}

void Progress::finish(const Outcome& outcome, std::string_view baseline_label, std::string_view why_baseline) {
  print(final_line(outcome, baseline_label, why_baseline));
}

void Progress::changed(const Decision& decision) {
  if (const std::string line = change_line(decision); !line.empty()) print(line);
}

void Progress::finish_early(Stage stage, std::string_view label) { print(unfinished_line(stage, label)); }

void Progress::print(const std::string& line) {
  write_(is_terminal_ ? fmt::format("{}{}{}\n", kReturn, line, kErase) : line + "\n");
}

}  // namespace gradtune::tuner
