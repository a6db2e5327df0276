// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// The options of a session, checked and with their defaults.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "engine/core/compressor.h"
#include "hooks/c10d/transport.h"

namespace gradtune {

struct Settings {
  core::Fidelity fidelity = core::Fidelity::half;
  std::vector<core::CompressorSpec> codecs;  // admitted codecs, "none" first; empty: the fidelity's default list
  std::string codecs_from;                   // the reason for these codecs, for journals
  core::OptimizerFamily optimizers = core::OptimizerFamily::sgd;
  std::optional<double> error_budget;  // none: derived from the errors seen
  std::optional<int64_t> lossy_after;  // none: the need of the compressors in a strategy
  std::string policy = "auto";
  std::string strategy;  // file; empty: none
  int64_t tuning_budget = 400;
  double tuning_share = 0.25;
  int64_t memory_budget = INT64_MAX;
  int64_t host_threads = 0;
  int64_t timeout_ms = 300'000;
  std::string journal;
  uint64_t seed = 0;
  bool quiet = false;
  bool broadcast_buffers = true;
  std::vector<std::string> ignored;  // names of tensors that each rank keeps for itself
  bool forward_overlap = false;
  Collectives collectives = Collectives::automatic;
};

}  // namespace gradtune
