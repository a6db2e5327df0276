// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// The reasons for a strategy as plain data: what else each bucket could do, what limits a step, and what would help.
// All of it follows from a model of the job's steps (policies/step_time_predictor.h): a step is expected anew with one
// thing changed. It leaves open how the reasons are told (report/explanation_words.h).
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "engine/core/result.h"
#include "policies/space/candidate.h"
#include "policies/step_time_predictor.h"
#include "tuner/files/journal_reader.h"
#include "tuner/forecast/recorded_job.h"

namespace gradtune::tuner {

// The parts of a step's work beside computation.
enum class Part : uint8_t { bytes, messages, compressors };

struct Without {
  Part part = Part::bytes;
  double ms = 0;  // of a step in which that part takes no time

  bool operator==(const Without&) const = default;
};

// Changes that a user can make. With `lossy` the strategy is planned anew, otherwise it stays.
enum class Remedy : uint8_t { twice_the_rate, half_the_delay, faster_compressors, lossy };

struct Helped {
  Remedy remedy = Remedy::twice_the_rate;
  double ms = 0;          // of a step
  bool is_guess = false;  // the job never timed that

  bool operator==(const Helped&) const = default;
};

// Another way to send a bucket, and the step time with it.
struct OtherWay {
  core::Option option;
  double ms = 0;

  bool operator==(const OtherWay&) const = default;
};

// A link that all ranks or all nodes share, as the model has it.
struct LinkRate {
  core::Level level = core::Level::flat;
  double mbit_per_s = 0;                                 // that a rank sends; 0: bytes take no time that was measured
  double message_ms = 0;                                 // of each message, whatever it carries
  core::Step::Kind kind = core::Step::Kind::all_reduce;  // the collective that has these times

  bool operator==(const LinkRate&) const = default;
};

// A compressor of the strategy or of a best other way, and what its table has for users.
struct UsedCompressor {
  core::CompressorSpec spec;
  std::string summary;
  std::string parameter_name;                       // empty if it has no parameter
  core::Fidelity fidelity = core::Fidelity::exact;  // the least that admits it

  bool operator==(const UsedCompressor&) const = default;
};

struct BucketReason {
  int32_t bucket = 0;
  std::string first, last;  // tensors
  int64_t bytes = 0;        // of its gradients, before compression
  core::Option option;
  // The way of the baseline of fp32: an all-reduce, or an all-gather of a sparse table's rows.
  core::Option plain = core::plain_all_reduce();
  // From the begin of its first operation to the end of its last one.
  double expected_ms = 0;
  std::optional<double> measured_ms = {};  // median on rank 0
  std::vector<OtherWay> others = {};       // fastest first; none if nothing else is possible or known

  bool operator==(const BucketReason&) const = default;
};

struct Explanation {
  std::string label;
  core::Ranks ranks = {};
  std::vector<LinkRate> links = {};
  // True: times are of whole steps. False: they begin when the first gradient is ready.
  bool is_whole = true;
  double expected_ms = 0;
  std::optional<double> measured_ms = {};
  double computation_ms = 0;          // of a step without any communication
  std::vector<Without> without = {};  // the part that takes most first
  std::vector<Helped> helped = {};    // what helps most first
  double larger_batch = 0;            // the share of the time for each sample that twice the batch saves
  std::vector<BucketReason> buckets;  // in the order of the strategy
  std::vector<UsedCompressor> compressors = {};
  int64_t left_out = 0;               // smaller buckets that are not explained
  std::vector<RanStrategy> ran = {};  // all strategies that ran, if a journal tells
};

// Explains a strategy that passes core::validate for the model's table. None if the model lacks one of its rates.
// `knowledge` tells which other ways are allowed.
std::optional<Explanation> explain(const policies::Candidate& candidate, const policies::Knowledge& knowledge,
                                   const policies::StepTimePredictor& model, bool is_whole);

// The same for a strategy that ran in that slot of a recorded job, with the measured times. An error says what the
// journal lacks.
core::Result<Explanation> explain(const JournalFile& journal, int32_t slot);

}  // namespace gradtune::tuner
