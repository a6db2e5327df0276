// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// Who has a TCP port of this machine, for errors about one that is taken. Read from /proc: what this process may not
// see, such as processes of other users, stays unknown.
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

// None where nobody is seen to have it.
std::optional<PortHolder> port_holder(uint16_t port);

}  // namespace gradtune
