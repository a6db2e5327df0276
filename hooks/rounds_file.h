// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// The file rounds.pt of a checkpoint of a job that trains in rounds. It is the same on all ranks, so it fits any world
// size. The program saves the parameters, which are the anchors between rounds, and its optimizer.
#pragma once

#include <torch/types.h>

#include <cstdint>
#include <string>
#include <vector>

#include "tuner/round_length.h"

namespace gradtune {

struct SavedRounds {
  int64_t session_step = 0;                  // of the session whose checkpoint is in the same folder
  int64_t dense_steps = 0;                   // synchronous steps done
  int64_t rounds = 0;                        // ended
  tuner::RoundShape round = {.updates = 0};  // no updates: training is synchronous
  std::vector<torch::Tensor> momenta = {};   // of the outer step

  bool is_synchronous() const { return round.updates == 0; }
};

// Throws an error that names the file if it cannot be written, or read, or does not hold such a state.
void save_rounds(const std::string& folder, const SavedRounds& saved);
SavedRounds load_rounds(const std::string& folder);
// Throws if the checkpoint in the same folder is of another step.
void check_step(const SavedRounds& saved, int64_t session_step, const std::string& folder);

}  // namespace gradtune
