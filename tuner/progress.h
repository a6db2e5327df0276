// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// Prints the progress of rank 0 on standard error. One line at the start names the fidelity and the compressors in
// force, and what carries gradients. A terminal gets a live line per stage, other outputs a plain line per stage. Each
// decision or finding gets a line, and a last line says how the job stands.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "engine/core/clock.h"
#include "engine/core/compressor.h"
#include "tuner/decision.h"
#include "tuner/standing.h"

namespace gradtune::tuner {

// The lines, without their line ends.
// `transport`: what carries gradients; empty: not known.
std::string start_line(core::Fidelity fidelity, const std::vector<core::CompressorSpec>& codecs,
                       std::string_view policy, std::string_view transport);
std::string stage_line(Stage stage, int64_t step);
std::string live_line(Stage stage, double progress, int64_t step, double step_ms, std::string_view label);
// The lines for the decisions and findings of one step, and the state of the job after it. The story is told if it
// has changed, and a line tells each finding that is not part of it. Decisions that only a journal needs are left
// out.
std::vector<std::string> lines_of(const std::vector<Decision>& decisions, const Standing& standing);
// The state of the job when training ended in that stage.
std::string final_line(const Standing& standing, Stage stage);

class Progress {
 public:
  using Write = std::function<void(std::string_view)>;

  // `write` shows text at once; `is_terminal` tells if a carriage return takes the cursor back.
  Progress(Write write, bool is_terminal, const core::Clock& clock);

  void start(core::Fidelity fidelity, const std::vector<core::CompressorSpec>& codecs, std::string_view policy,
             std::string_view transport);
  void step(Stage stage, double progress, int64_t step, double step_ms, std::string_view label);
  void decided(const std::vector<Decision>& decisions, const Standing& standing);
  void finish(const Standing& standing, Stage stage);

 private:
  void print(const std::string& line);  // replaces the live line, if there is one

  Write write_;
  const bool is_terminal_;
  const core::Clock& clock_;
  std::optional<Stage> stage_;
  int64_t next_live_ns_ = 0;
};

}  // namespace gradtune::tuner
