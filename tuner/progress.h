// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// What rank 0 tells people on standard error: one line at the start that says which fidelity and compressors are in
// force, a live line per stage on a terminal (a plain line per stage elsewhere), and one last line with the confirmed
// gain. While the committed strategy is watched it is silent.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "engine/core/clock.h"
#include "engine/core/compressor.h"
#include "tuner/tuner.h"

namespace gradtune::tuner {

// The lines, without their ends.
std::string start_line(core::Fidelity fidelity, const std::vector<core::CompressorSpec>& codecs,
                       std::string_view policy);
std::string stage_line(Stage stage, int64_t step);
std::string live_line(Stage stage, double progress, int64_t step, double step_ms, std::string_view label);
// "gradtune: committed topk:0.01 gather, 3 buckets: 228.1 -> 104.3 ms a step (gain 54.3 %, 95 % interval 53.1 to 55.4
// %), baseline bf16 all_reduce; tuning took 210 steps and cost 1.9 s", or that the baseline stays, and why.
std::string final_line(const Outcome& outcome, std::string_view baseline_label, std::string_view why_baseline);

// What happened after the first decision. Empty for kinds of decisions that nobody is told of.
std::string change_line(const Decision& decision);
// Where training ended before a decision: in that stage, with that strategy in force.
std::string unfinished_line(Stage stage, std::string_view label);

class Progress {
 public:
  using Write = std::function<void(std::string_view)>;

  // `write` gets text to show at once; `is_terminal` says whether a carriage return takes the cursor back.
  Progress(Write write, bool is_terminal, const core::Clock& clock);

  void start(core::Fidelity fidelity, const std::vector<core::CompressorSpec>& codecs, std::string_view policy);
  void step(Stage stage, double progress, int64_t step, double step_ms, std::string_view label);
  void finish(const Outcome& outcome, std::string_view baseline_label, std::string_view why_baseline);
  void changed(const Decision& decision);
  void finish_early(Stage stage, std::string_view label);

 private:
  void print(const std::string& line);  // in the place of the live line, if there is one

  Write write_;
  const bool is_terminal_;
  const core::Clock& clock_;
  std::optional<Stage> stage_;
  int64_t next_live_ns_ = 0;
};

}  // namespace gradtune::tuner
