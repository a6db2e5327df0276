// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// The cores that this process may run on.
#pragma once

#include <string>

namespace gradtune {

struct AllowedCores {
  int count = 0;      // 0: the system does not say
  std::string names;  // "0,1,5"
};
AllowedCores allowed_cores();

}  // namespace gradtune
