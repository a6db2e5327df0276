// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// Finds the process that holds a TCP port of this machine, for errors about a port that is taken. It reads /proc, so
// processes that this one may not see, such as those of other users, stay unknown.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace gradtune {

struct PortHolder {
  int pid = 0;
  bool is_this_process = false;
  std::string name;  // of its program
};

// None if no visible process has it.
std::optional<PortHolder> port_holder(uint16_t port);

}  // namespace gradtune
