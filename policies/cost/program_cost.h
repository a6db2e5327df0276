// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// The cost model of programs: each step's size times the rates of a cost table. A bucket is a message. Its steps
// before the first collective delay backward or occupy the host. From the first collective to the last it occupies
// the link, with the computation and waiting in between. The remaining steps have a lane of their own. Copies of
// gradients from a device before the first collective count as the host's work.
#pragma once

#include <memory>
#include <vector>

#include "engine/core/result.h"
#include "policies/cost/cost_model.h"
#include "policies/cost/cost_table.h"

namespace gradtune::policies {

// The options for which the table has all rates, for buckets of up to `most_elements`. Drops option A if some option
// B is no slower in any lane at any size, loses no more, and
// - leaves the device no work after its first collective, unless A does too;
// - does not use the host, unless A does too;
// - is a baseline's (is_baseline), if A is.
// Returns an error if the table has no all_reduce over all ranks, which is the basis of option 0.
// An error where the table has no all_reduce over all ranks, which option 0 is made of.
//
// `dtypes`: of the gradients that work() is asked for. Work is tabulated at sizes a factor of two apart, as if each
// were a square matrix, and interpolated between them. Gradients that do not accept the option (core::takes) are
// summed without it.
core::Result<std::unique_ptr<CostModel>> make_program_cost(const CostTable& table,
                                                           const std::vector<core::Option>& options,
                                                           core::TraitsTable known, int64_t most_elements,
                                                           const std::vector<core::DType>& dtypes = {core::DType::f32});

// The cost of a step, in us. In a collective, cores handle the messages first, then the link is busy with the bytes,
// and then the collective only waits for the last ones to arrive.
struct OpCost {
  double messages_us = 0, busy_us = 0, wait_us = 0;

  double us() const { return messages_us + busy_us + wait_us; }
};

// One cost for each step, or an error that names the step without a rate.
core::Result<std::vector<OpCost>> program_op_costs(const CostTable& table, const core::Option& option,
                                                   const core::Extent& bucket, core::TraitsTable known,
                                                   core::DType dtype = core::DType::f32);

// For each copy between a device and the host (inserted_steps.h): the step that it precedes, and its time.
struct CopyCost {
  size_t before = 0;
  bool to_host = false;
  double us = 0;
};
std::vector<CopyCost> program_copy_costs(const CostTable& table, const core::Option& option, const core::Extent& bucket,
                                         core::TraitsTable known, core::DType dtype = core::DType::f32);

// Microseconds of each lane, computed without a table of sizes; none if a rate is missing.
std::optional<Work> program_work(const CostTable& table, const core::Option& option, const core::Extent& bucket,
                                 core::TraitsTable known, core::DType dtype = core::DType::f32);

}  // namespace gradtune::policies
