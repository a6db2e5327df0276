// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// Rank, world size and rendezvous of this process, as the launcher's variables give them: a pure function of an
// environment.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>

#include "engine/core/result.h"

namespace gradtune {

struct LaunchInfo {
  int rank = 0;
  int world_size = 1;
  std::string launcher = "none";  // torchrun, Slurm, mpirun, none
  std::string master_address = "127.0.0.1";
  int master_port = 0;       // 0: any free port (a group of one)
  bool agent_store = false;  // torchrun's agent already runs the store at that address

  bool operator==(const LaunchInfo&) const = default;
};

using Environment = std::function<std::optional<std::string>(const char* name)>;

// Reads a variable of this process; an empty one counts as not set.
std::optional<std::string> environment_variable(const char* name);

// A name that tells this machine from others: GRADTUNE_NODE if it is set, otherwise host, boot and network
// namespace. So containers with a network of their own are separate nodes.
std::string node_name(const Environment& environment);

// Errors name the variable, its value and the values that are allowed.
core::Result<LaunchInfo> launch_info(const Environment& environment);

// The number of ranks of the job on this node, as the launcher gives it; none if it does not.
std::optional<int> local_world_size(const Environment& environment);

// The first host of a Slurm node list: "node[03-07,12],x1" -> "node03".
std::string first_host(const std::string& node_list);

}  // namespace gradtune
