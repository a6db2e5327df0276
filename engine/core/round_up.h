// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// Rounding of sizes and offsets up to multiples.
#pragma once

#include <cstdint>

namespace gradtune::core {

constexpr int64_t round_up(int64_t value, int64_t multiple) { return (value + multiple - 1) / multiple * multiple; }

}  // namespace gradtune::core
