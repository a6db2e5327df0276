// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// The check that the best strategy is still the best, after an alarm: strategies known from before race again
// (Racing::Among::known), and a new search starts only if they rank differently or the job has changed. Observing
// asks for the race once the baselines are measured, and Racing for the judgement at its end.
#pragma once

#include "tuner/next_phase.h"
#include "tuner/race.h"

namespace gradtune::tuner {

struct Context;

// Races the known strategies. It searches at once instead if the committed strategy's speed relative to the baseline
// has moved far since the last search, or if no strategy is known.
NextPhase rank_again(Context& context);

// Keeps the strategy in force if it won that race, or if nothing else did. Otherwise it searches, with the arms that
// are left as leaders; if the other baseline beats a committed strategy, that strategy is dropped first.
NextPhase judge_ranking(Context& context, const Race& race);

}  // namespace gradtune::tuner
