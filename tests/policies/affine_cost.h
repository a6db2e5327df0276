// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// A made-up cost model for tests: for each option and lane a fixed cost and a cost per element.
#pragma once

#include <optional>
#include <vector>

#include "engine/core/rng.h"
#include "policies/cost/cost_model.h"

namespace gradtune::policies::testing {

struct AffineCost final : CostModel {
  struct Row {
    Work fixed_us{}, us_per_element{};
    std::optional<size_t> on_host = {};
    bool loses = false;
  };
  explicit AffineCost(std::vector<Row> table)
      : rows(std::move(table)), programs(rows.size(), core::plain_all_reduce()) {
    for (const Row& row : rows) {
      if (row.on_host) programs[*row.on_host] = core::gather_payloads({"topk", 0.01}, core::Place::host);
    }
  }

  std::span<const core::Option> options() const override { return programs; }
  std::optional<size_t> on_host(size_t option) const override { return rows[option].on_host; }
  bool loses(size_t option) const override { return rows[option].loses; }
  Work work(size_t option, int64_t numel, core::DType dtype = core::DType::f32) const override {
    Work work = rows[option].fixed_us;
    // share of the bytes that option 0 sends
    const double width = static_cast<double>(core::bytes_per_element(dtype)) / 4;
    for (size_t lane = 0; lane < kLanes; ++lane) {
      const double scale = option == 0 && lane == kLink ? width : 1;
      work[lane] += scale * rows[option].us_per_element[lane] * static_cast<double>(numel);
    }
    return work;
  }

  const std::vector<Row> rows;
  std::vector<core::Option> programs;  // one for each row; it only matters if they use the host
};

// The options: uncompressed; a compressor on the device; the same one on the host. Link and decoding grow with the
// number of ranks as for an all-reduce and for an all-gather of payloads.
AffineCost random_cost(core::Rng& rng, int ranks);

}  // namespace gradtune::policies::testing
