// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// The checkpoint of a job that trains in rounds: that of each fragment's session, and a file that is the same on all
// ranks, so that it fits any world size. The program saves the parameters, which are the anchors between rounds, and
// its optimizer. The file's name has the first session's step. With several fragments, each has a folder whose name has
// it too. The file is written first, and older ones are removed last. It counts once all sessions' checkpoints have the
// steps that it names, so the checkpoint before is complete until the new one is.
#pragma once

#include <torch/types.h>

#include <cstdint>
#include <string>
#include <vector>

#include "hooks/session.h"
#include "tuner/round_length.h"

namespace gradtune {

struct SavedRounds {
  std::vector<int64_t> session_steps = {};   // of each fragment's session
  int64_t dense_steps = 0;                   // synchronous steps done
  int64_t rounds = 0;                        // ended
  tuner::RoundShape round = {.updates = 0};  // no updates: training is synchronous
  std::vector<torch::Tensor> momenta = {};   // of the outer step

  bool is_synchronous() const { return round.updates == 0; }
};

using Sessions = std::vector<Session*>;  // one for each fragment

// All ranks call these between passes, and get the same error, which names the rank and the file. Saving sets the
// sessions' steps.
void save_rounds(const Sessions& sessions, const std::string& folder, SavedRounds saved);
SavedRounds load_rounds(Session& session, const std::string& folder);  // any session of the job
void load_sessions(const Sessions& sessions, const std::string& folder, const SavedRounds& saved);

// Throws unless it is of a job of so many fragments with such trained parameters.
void check_fits(const SavedRounds& saved, const std::string& folder, int64_t fragments,
                const std::vector<torch::Tensor>& parameters);

}  // namespace gradtune
