// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// The phases of the tuner. Exactly one of them is under way at any time. Each is a class that owns the state of its
// part of the work, and decides what is next from the scores of the blocks that it asked for. The state that they
// share is the context (context.h).
//
//   Observing                 -> Searching; Racing (imported), if a file has a strategy; Racing (known), after an alarm
//   Searching                 -> Racing (found)
//   Racing (imported, found)  -> Confirming
//   Racing (known)            -> Searching, if a strategy other than the one in force won
//   Confirming                -> Watching; Searching, if an imported strategy was not confirmed
//   Watching                  -> Auditing, Observing
//   Auditing                  -> Watching, Observing
//
// Every phase can also end in Watching: with the budget, or because nothing is worth more work. The guard (guard.h)
// leads from any phase to Confirming, when it repairs a strategy, and from a winner that it bans to the phase after a
// failed confirmation.
//
// The core calls these functions of a phase, which return the phase that follows, or nothing:
// - `begin(context)`, once, when the phase is entered. It puts blocks on the schedule, or strategies into the queue to
//   be prepared.
// - `advance(context, scores)`, when all of these are done, with the scores of the blocks in the order in which they
//   ran. It evaluates them and asks for more.
// - `progress(scored)`, at any time: the share of the phase that is done, 0 to 1, once so many blocks have a score.
#pragma once

#include "tuner/auditing.h"
#include "tuner/confirming.h"
#include "tuner/decision.h"
#include "tuner/next_phase.h"
#include "tuner/observing.h"
#include "tuner/racing.h"
#include "tuner/searching.h"
#include "tuner/watching.h"

namespace gradtune::tuner {

Stage stage_of(const Phase& phase);

// Tells if the imported strategy is still to be confirmed.
bool is_importing(const Phase& phase);

}  // namespace gradtune::tuner
