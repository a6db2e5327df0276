// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// A recorded job as a model of its steps: fitted to the operation times in its journal as policy `auto` fits it, and
// held against the step times in the journal. It leaves open which questions are asked of it (what_if.h,
// explanation.h).
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "engine/core/result.h"
#include "policies/space/candidate.h"
#include "policies/step_time_predictor.h"
#include "tuner/files/journal_reader.h"

namespace gradtune::tuner {

// The link between ranks, or between nodes if ranks share nodes.
struct Link {
  double rate_mbit = 0;  // Mbit/s in one direction
  double delay_us = 0;   // of a packet, one way

  bool operator==(const Link&) const = default;
};

// A strategy that ran in the job. Its own step time is not part of the model, except that of the baselines.
struct RanStrategy {
  policies::Candidate candidate;
  int64_t steps = 0;
  double measured_ms = 0;  // median of its steps
  double expected_ms = 0;  // by the model

  double error() const { return expected_ms / measured_ms - 1; }
};

struct RecordedJob {
  // The job, with the fidelity and the compressors to plan with, and with the model's ready times.
  policies::Knowledge knowledge;
  policies::StepTimePredictor model;
  core::Fidelity recorded_fidelity = core::Fidelity::half;
  // The compressors of these that the job did not time. Their times are guesses, on the fast side.
  std::vector<core::CompressorSpec> guessed = {};
  Link link = {};
  std::vector<RanStrategy> ran = {};

  // Errors of the model's predictions for these strategies, without sign: the middle one, and the largest. None if
  // nothing ran for long enough.
  struct Misfit {
    double middle = 0, largest = 0;
    int64_t strategies = 0;
  };
  std::optional<Misfit> misfit() const;
};

// `fidelity`: to plan with, by default that of the job. Compressors of a fidelity take part if the job timed them. If
// it timed none of that fidelity, those take part that such jobs use by default. A journal without timings, or
// without ready times, is an error.
core::Result<RecordedJob> recorded_job(const JournalFile& journal, std::optional<core::Fidelity> fidelity = {});

// The link that was probed before the first step. Without a probe it follows from the fitted rates.
Link link_of(const policies::StepTimePredictor& model, const policies::Machine& machine);

// A strategy and its step time.
struct Forecast {
  core::Strategy strategy = {};
  double ms = 0;
  double error_ms = 0;  // one standard error of the fitted rates
};

// The faster of the strategies that a user has without gradtune. None if the model lacks a rate.
std::optional<Forecast> forecast_baseline(const policies::Knowledge& knowledge,
                                          const policies::StepTimePredictor& model);

// The strategy that policy `auto` would choose if the model were the truth: the fastest of its plan, its plan after
// small changes, the baselines, and `known`. Plans use the compressors and fidelity of `knowledge`; its ranks must be
// those of the model.
std::optional<Forecast> forecast_choice(const policies::Knowledge& knowledge, const policies::StepTimePredictor& model,
                                        std::span<const core::Strategy> known = {});

}  // namespace gradtune::tuner
