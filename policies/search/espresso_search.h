// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// The two algorithms of Espresso (EuroSys 2023, sections 4.2 and 4.3) under a cost model: an option for each tensor by
// its own, largest first, on the device; then the best tensors to move to the host. Tensors are not merged. Faithful to
// the paper, whose released code differs from it in both.
#pragma once

#include <cstdint>
#include <span>

#include "policies/search/label_search.h"

namespace gradtune::policies {

// Algorithm 1: for each tensor, the largest first, the option on the device with which the whole step ends first. A
// tensor that is sent as it is, before the last gap in which the link waits for backward, is not looked at again: to
// send less before a gap only widens it.
Plan choose_options(const CostModel& model, std::span<const Atom> tensors);

// Algorithm 2: of the tensors of a plan that are alike in size and option and have a twin on the host, the first ones
// of each group go there, as many as let the step end first; all combinations of counts are tried. The paper proves
// that no other choice is better (Lemma 1, Theorem 1), under assumptions that lanes which serve messages in order do
// not always meet: of random jobs 1 in 100 has a better choice, where what is sent early keeps a saturated link from
// waiting. Where there are more combinations than `most_replays`, one group is moved after the other, all its counts
// being tried while the others stay, until nothing helps or that many were tried.
Plan offload(const CostModel& model, std::span<const Atom> tensors, const Plan& plan, int64_t most_replays = 1'000'000);

}  // namespace gradtune::policies
