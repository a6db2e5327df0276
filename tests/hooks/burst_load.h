// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// The load of other users of a machine: processes that compute in bursts of 0.2 to 20 s, with pauses as long between
// them, on both of the cores that a job is confined to. It leaves open what the job is.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <vector>

namespace gradtune::test {

// From here on this process, and all that it starts later, run on this many of its cores.
void confine_to_cores(int cores);

class BurstLoad {
 public:
  // Starts one process for each core, all in step. They end with this object, with the process that started them, or
  // by themselves after the time limit.
  BurstLoad(int cores, uint64_t seed, double time_limit_s);
  ~BurstLoad();
  BurstLoad(const BurstLoad&) = delete;
  BurstLoad& operator=(const BurstLoad&) = delete;

 private:
  std::vector<pid_t> children_;
};

}  // namespace gradtune::test
