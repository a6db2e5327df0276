// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// Cost tables as files (JSON, schema gradtune.cost/5). The members of the object:
// - "schema", "world_size", "ranks_per_node" (0: no levels)
// - "cores": {"of_rank" (0: not known), "computing", "host_threads", "network" (may be missing: 0)}
// - "scale": {"fixed_us", "element_us"}
// - "collectives": [{"kind", "level", "message_us", "byte_us", "wait_us"}]
// - "codecs": [{"codec", "place", "use" (0: not measured), "encode": {"fixed_us", "element_us"},
//             "decode": {"fixed_us", "element_us", "byte_us"}}]
// - if gradients are on a device, "device": {"collectives", "kernels", "to_host": {"fixed_us", "byte_us"},
//             "to_device": {"fixed_us", "byte_us"}}
// - policies/cost/cost_table.h explains the figures. Files are untrusted: they are within the limits of
//   strict_json.h, and every number is in a range.
#pragma once

#include <string>
#include <string_view>

#include "engine/core/result.h"
#include "policies/cost/cost_table.h"

namespace gradtune::tuner {

// Errors give the place in the file, the value found and the values allowed.
core::Result<policies::CostTable> parse_cost(std::string_view text, core::TraitsTable known);
std::string to_json(const policies::CostTable& table);

}  // namespace gradtune::tuner
