// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// Aborts a Gloo group, which c10d cannot do. Without it, a collective that some ranks do not join blocks the others
// until its timeout, and so does destroying the group.
#pragma once

#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>

namespace gradtune {

// Closes the group's connections with an error. Work in flight ends at once with that error, on this rank and on its
// peers. May be called from any thread. Connections that are not TCP are left alone.
void abort_connections(c10d::ProcessGroupGloo& group);

}  // namespace gradtune
