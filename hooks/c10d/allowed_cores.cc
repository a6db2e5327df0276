// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
#include "hooks/c10d/allowed_cores.h"

#include <sched.h>

namespace gradtune {

AllowedCores allowed_cores() {
  AllowedCores allowed;
  cpu_set_t cores;
  if (sched_getaffinity(0, sizeof cores, &cores) != 0) return allowed;
  for (int core = 0; core < CPU_SETSIZE; ++core) {
    if (!CPU_ISSET(core, &cores)) continue;
    allowed.names += (allowed.count++ > 0 ? "," : "") + std::to_string(core);
  }
  return allowed;
}

}  // namespace gradtune
