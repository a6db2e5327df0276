// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// The two algorithms of Espresso (EuroSys 2023, sections 4.2 and 4.3) under a cost model. The first chooses an
// option on the device for each tensor separately, largest first. The second moves the best tensors to the host.
// Tensors are not merged. The code follows the paper; the released code differs from it in both algorithms.
#pragma once

#include <cstdint>
#include <span>

#include "policies/search/label_search.h"

namespace gradtune::policies {

// Algorithm 1: for each tensor, the largest first, chooses the device option with which the whole step ends first. A
// tensor that is sent without compression, before the last gap in which the link waits for backward, is not
// considered again: sending less before a gap only widens the gap.
Plan choose_options(const CostModel& model, std::span<const Atom> tensors);

// Algorithm 2: groups the tensors of a plan that are equal in size and option and have a counterpart on the host.
// The first tensors of each group go to the host, as many as let the step end first; all combinations of counts are
// tried. The paper proves that no other choice is better (Lemma 1, Theorem 1), under assumptions that lanes with
// in-order service do not always meet. In 1 of 100 random jobs another choice is better, because an early message
// keeps a saturated link from waiting. If there are more combinations than `most_replays`, one group is changed
// after another: all its counts are tried while the others stay, until nothing helps or that many were tried.
Plan offload(const CostModel& model, std::span<const Atom> tensors, const Plan& plan, int64_t most_replays = 1'000'000);

}  // namespace gradtune::policies
