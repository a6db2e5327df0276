// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// Figures with their units, as printed in reports.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace gradtune::tuner {

// A number without a unit: "0.123", "4.56", "78.9", "1234.5". Values that are not finite give "-".
std::string number(double value);

std::string in_ms(double ms);                              // "78.9 ms"
std::string in_seconds(double ms);                         // "7.9 s", "1.5 h"
std::string in_bytes(int64_t bytes);                       // "512 B", "1.5 KiB", "24.5 MiB"
std::string percent(double share);                         // "10.9 %"
std::string count(int64_t value);                          // "8,551,818"
std::string plural(int64_t value, std::string_view what);  // "1 step", "2 steps", "1,000 steps"

// At most this many bytes of UTF-8, ending in "..." if some were left out.
std::string shortened(std::string_view text, size_t most);

}  // namespace gradtune::tuner
