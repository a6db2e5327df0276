// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// Rank 0's commands: each one goes with the next control word to all ranks, which carry it out in the same step. The
// text of a strategy or of a new result follows by broadcast.
#pragma once

#include <string>

#include "hooks/learning.h"
#include "hooks/warnings.h"
#include "policies/space/candidate.h"
#include "tuner/step_protocol.h"
#include "tuner/tuner.h"

namespace gradtune {

class Commands {
 public:
  Commands(const SessionParts& parts, Warnings& warnings) : of_(parts), warnings_(warnings) {}

  // On rank 0: sends the action in the next control word. A new result goes with it, so that all ranks report the
  // same.
  void announce(const tuner::Action& action);
  // On all ranks: carries out the command of the word that was received.
  void carry_out(const tuner::Command& command);

  // The strategy as the text of a file; on rank 0 with the tuner's evidence, if wanted.
  std::string strategy_text(const policies::Candidate& candidate, bool evidence) const;

 private:
  const SessionParts of_;
  Warnings& warnings_;
};

}  // namespace gradtune
