// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// The file of a checkpoint of a job that trains in rounds. It is the same on all ranks, so it fits any world size. The
// program saves the parameters, which are the anchors between rounds, and its optimizer. The name has the session's
// step, and the file is written before the session's checkpoint. So the one before stays complete until the new one
// is, which all ranks take or none.
#pragma once

#include <torch/types.h>

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "hooks/session.h"
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

// The session is any of the job. All ranks call these, and get the same error, which names the rank and the file.
// `save_sessions` saves the checkpoints that the state belongs to.
void save_rounds(Session& session, const std::string& folder, const SavedRounds& saved,
                 const std::function<void()>& save_sessions);
SavedRounds load_rounds(Session& session, const std::string& folder);

}  // namespace gradtune
