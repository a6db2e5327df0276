// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// The cost model of Espresso's released simulator (EuroSys 2023; zhuangwang93/Espresso, simulator_espresso.py), as
// published, for comparison with other planners. It models machines with several GPUs, 10 Gbit/s and 150 us between
// machines, and one lane for communication that encoding and decoding occupy too. In it, neither the volume of
// all-gathers nor the work of decoding grows with the number of machines.
//
// Options: 0 FP32; 1 FP16; 2 FP16 inside a machine, compressed between machines; 3 compressed inside and between.
#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "engine/core/result.h"
#include "policies/cost/cost_model.h"
#include "policies/cost/knowledge.h"

namespace gradtune::policies {

struct PublishedCost {
  std::string compressor = "randomk";  // randomk, dgc, efsignsgd, onebit
  std::string intra = "pcie";          // the link inside a machine: pcie, nvl
  int machines = 8;
  int gpus_per_machine = 8;
  bool two_level = false;  // option 3 may be used
};

// An unknown name is an error that lists the known names.
core::Result<std::unique_ptr<CostModel>> make_published_cost(const PublishedCost& parameters);

// The knowledge of a job with that table that policies get: the compressors are those of the model's options.
Knowledge published_knowledge(const PublishedCost& parameters, core::GradientTable table);

}  // namespace gradtune::policies
