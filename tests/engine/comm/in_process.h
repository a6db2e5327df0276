// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// The effect of a collective on memory, for groups whose ranks share one address space: threads and simulated ranks.
// Elements are added in the order of ranks, whatever the order of arrival, and 16-bit floats are added in fp32 and
// rounded once. So results are the same in every run.
#pragma once

#include <span>
#include <string>

#include "engine/comm/communicator.h"

namespace gradtune::comm {

// Throws ProgramError for a call that no group of that size could carry out.
void check_legal(const Collective& collective, int size);

// Takes one call per rank, in rank order. Returns the first property that must agree and does not, as a sentence;
// empty if all agree.
std::string first_difference(std::span<const Collective> calls);

// Carries out calls that are legal and agree. No buffer may overlap another one, except as Collective allows.
void move_data(std::span<const Collective> calls);

// The first is the error of a collective that the `missing` ranks did not join in time (none: all joined, and it
// took too long). The second is the error that the other ranks receive when a rank has ended the group.
core::Error timed_out(const Collective& collective, std::span<const int> missing);
core::Error lost(int rank, const core::Error& error);

}  // namespace gradtune::comm
