// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// The fate of strategies that are up for a decision: the winner of a confirmation is committed, the committed one is
// dropped, or everything stays as it is. Every phase that ends a tuning calls one of these functions. The phases that
// they return write the rest of the decision (Watching).
#pragma once

#include <cstdint>
#include <string>

#include "tuner/confirm.h"
#include "tuner/next_phase.h"

namespace gradtune::tuner {

struct Context;

// A strategy that is lossier than the baseline has to be faster by more than a tie.
bool is_worth(const Context& context, int32_t slot, double gain);

// Commits the strategy in place of the one committed before, with its evidence.
NextPhase commit(Context& context, int32_t slot, const Claim& claim);

// The strategy confirmed before stays, or the baseline. `why` tells people why nothing else was kept.
NextPhase settle(Context& context, const std::string& why);

// An imported strategy that is not confirmed is dropped, and tuning begins.
NextPhase drop_imported(Context& context, const std::string& why);
// The end of a candidate that was not confirmed: drop_imported() or settle().
NextPhase fall_back(Context& context, bool is_importing, const std::string& why);

// The committed strategy is no longer faster than the baseline, or by too little for its loss.
void drop_committed(Context& context, double gain);
// The same without a decision of its own. There has to be a committed strategy. It may become the best again.
void forget_committed(Context& context);

}  // namespace gradtune::tuner
