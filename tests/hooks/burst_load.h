// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// Others who share a machine: processes that compute in bursts of 0.2 to 20 s, with pauses as long between them, on
// both of the cores that a job is confined to. Leaves open what the job is.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <vector>

namespace gradtune::test {

// This process, and all that it starts later, run on so many of its cores from here on.
void confine_to_cores(int cores);

class BurstLoad {
 public:
  // One process for each core, all in step. They end with this, with the process that started them, or by themselves
  // after so long.
  BurstLoad(int cores, uint64_t seed, double time_limit_s);
  ~BurstLoad();
  BurstLoad(const BurstLoad&) = delete;
  BurstLoad& operator=(const BurstLoad&) = delete;

 private:
  std::vector<pid_t> children_;
};

}  // namespace gradtune::test
