// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// Lets a rank end after the one that failed. Launchers blame the process that ended first, and a rank that is told
// of a failure may end faster than the rank that failed.
#pragma once

#include <chrono>
#include <string>

namespace gradtune {

// Names this process for others on its machine; empty if the system does not say.
std::string process_name();

// Waits until the named process has ended and its parent knows, for at most `most`. If the parent does not wait for
// it, this returns a while after the end. Returns at once for this process itself, and for one that this process
// cannot see: on another machine or in another namespace.
void await_end_of_process(const std::string& name, std::chrono::milliseconds most);

}  // namespace gradtune
