// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// Ends what a Gloo group does. c10d has no abort for Gloo: a collective that some ranks do not join holds the others
// until its time limit, and so does the end of the group.
#pragma once

#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>

namespace gradtune {

// Closes the group's connections with an error: what is under way on this rank ends with it at once, and on the ranks
// at the other ends as well. From any thread. Connections that are not TCP are left alone.
void abort_connections(c10d::ProcessGroupGloo& group);

}  // namespace gradtune
