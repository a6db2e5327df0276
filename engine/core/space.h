// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// Where memory lies, and where the work that uses it is done.
#pragma once

#include <cstdint>

namespace gradtune::core {

enum class Space : uint8_t { host, cuda };

}  // namespace gradtune::core
