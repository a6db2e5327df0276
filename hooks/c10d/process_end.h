// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// Lets a rank end after the one that failed. Launchers take the process that ended first for the cause of what all
// ended of, and a rank that is told of a failure may be faster than the one that tells.
#pragma once

#include <chrono>
#include <string>

namespace gradtune {

// Names this process, for others on its machine; empty where the system does not tell.
std::string process_name();

// Waits until the process of that name has ended and its parent knows, or, where the parent does not ask, has ended a
// while ago; not longer than `most`. Returns at once for this process itself, and for one that this one can not see: on
// another machine, or in another namespace.
void await_end_of_process(const std::string& name, std::chrono::milliseconds most);

}  // namespace gradtune
