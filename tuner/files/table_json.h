// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// The gradient table as written in journals and traces. engine/core/gradient_table.h explains the members:
// - "forward_us", "update_element_us" (0: not measured)
// - "tensors": [{"name", "shape", "dtype", "ready_us", "read_us" (left out if no reader was seen), "memory_order"
//   (left out if it is that of the shape), "content" (left out of a dense tensor)}]
// - the content of a tensor: {"row", "of_one", "of_all", "high_one", "high_all"}
// - "uses" (left out if not measured): [{"compressor", "share"}]
#pragma once

#include <string>
#include <string_view>

#include "engine/core/gradient_table.h"
#include "tuner/files/strict_json.h"

namespace gradtune::tuner {

// The members, without the braces of their object; `between` follows the comma after each tensor.
std::string table_members(const core::GradientTable& table, std::string_view between = "");

// Reads an object with these members; other members are ignored, and every number is in a stated range. Errors are
// the reader's, at places that begin with `where`.
core::GradientTable read_table(const JsonObject& object, const std::string& where, JsonReader& in);

}  // namespace gradtune::tuner
