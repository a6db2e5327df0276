// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// The gradient table as journals and traces have it: {"forward_us", "update_element_us" (0: not measured), "tensors":
// [{"name", "shape", "dtype", "ready_us", "read_us" (left out where no reader was seen), "memory_order" (left out
// where it is that of the shape), "content" (left out of a dense tensor): {"row", "of_one", "of_all", "high_one",
// "high_all"}}], "uses" (left out where not measured): [{"compressor",
// "share"}]}. What the members mean is said in engine/core/gradient_table.h.
#pragma once

#include <string>
#include <string_view>

#include "engine/core/gradient_table.h"
#include "tuner/files/strict_json.h"

namespace gradtune::tuner {

// The members, as they stand between the braces of an object; `between` follows the comma after each tensor.
std::string table_members(const core::GradientTable& table, std::string_view between = "");

// From an object with these members, and others that are not looked at; every number in a stated range. Errors are the
// reader's, at places that begin with `where`.
core::GradientTable read_table(const JsonObject& object, const std::string& where, JsonReader& in);

}  // namespace gradtune::tuner
