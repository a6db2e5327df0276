// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// Text form of the things that must be equal on all ranks, for comparison. There is one line for each thing: its
// name, then its properties. Exchanging the texts is the caller's task.
#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace gradtune {

struct SharedThing {
  std::string name;                                             // "parameter 0.weight"
  std::vector<std::pair<std::string, std::string>> properties;  // {"shape", "[64, 20]"}
};

std::string to_text(const std::vector<SharedThing>& things);

// The first difference between the texts of two ranks, with the rank numbers, the thing and the property. Empty if
// there is none. Example: `parameter 0.weight: shape is [32, 20] on rank 2 and [64, 20] on rank 0`.
std::string first_difference(std::string_view one, int rank_of_one, std::string_view other, int rank_of_other);

}  // namespace gradtune
