// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// What rank 0 tells people on standard error: one line at the start that says which fidelity and compressors are in
// force, a live line per stage on a terminal (a plain line per stage elsewhere), a line when something is decided or
// noticed, and one last line that says how the job stands.
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

// The lines, without their ends.
std::string start_line(core::Fidelity fidelity, const std::vector<core::CompressorSpec>& codecs,
                       std::string_view policy);
std::string stage_line(Stage stage, int64_t step);
std::string live_line(Stage stage, double progress, int64_t step, double step_ms, std::string_view label);
// What was decided and noticed in one step, and how the job stands after it: its story where that is another one now,
// and a line for each finding that is not part of it. None of what only a journal is told of.
std::vector<std::string> lines_of(const std::vector<Decision>& decisions, const Standing& standing);
// How the job stood when training ended, in that stage.
std::string final_line(const Standing& standing, Stage stage);

class Progress {
 public:
  using Write = std::function<void(std::string_view)>;

  // `write` gets text to show at once; `is_terminal` says whether a carriage return takes the cursor back.
  Progress(Write write, bool is_terminal, const core::Clock& clock);

  void start(core::Fidelity fidelity, const std::vector<core::CompressorSpec>& codecs, std::string_view policy);
  void step(Stage stage, double progress, int64_t step, double step_ms, std::string_view label);
  void decided(const std::vector<Decision>& decisions, const Standing& standing);
  void finish(const Standing& standing, Stage stage);

 private:
  void print(const std::string& line);  // in the place of the live line, if there is one

  Write write_;
  const bool is_terminal_;
  const core::Clock& clock_;
  std::optional<Stage> stage_;
  int64_t next_live_ns_ = 0;
};

}  // namespace gradtune::tuner
