// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// Who this process is among the ranks, as the launcher's variables say: a pure function of an environment.
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
  int master_port = 0;       // 0: any free one (a group of one)
  bool agent_store = false;  // torchrun's agent already runs the store at that address

  bool operator==(const LaunchInfo&) const = default;
};

using Environment = std::function<std::optional<std::string>(const char* name)>;

// The process's own variables; an empty one counts as not set.
std::optional<std::string> environment_variable(const char* name);

// What tells the machine of this process from others: GRADTUNE_NODE where that is set, otherwise host, boot and network
// namespace, so that containers with a network of their own are nodes of their own.
std::string node_name(const Environment& environment);

// Errors name the variable, its value and what is allowed.
core::Result<LaunchInfo> launch_info(const Environment& environment);

// How many ranks of the job are on this process's node, as the launcher says; none where it does not.
std::optional<int> local_world_size(const Environment& environment);

// The first host of a Slurm node list: "node[03-07,12],x1" -> "node03".
std::string first_host(const std::string& node_list);

}  // namespace gradtune
