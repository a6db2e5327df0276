// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// Where memory lies, and where the work that uses it is done.
#pragma once

#include <cstdint>
#include <string_view>

namespace gradtune::core {

enum class Space : uint8_t { host, cuda };

constexpr std::string_view to_string(Space space) { return space == Space::host ? "host" : "cuda"; }

}  // namespace gradtune::core
