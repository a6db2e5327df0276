// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// The size of each step of a program on the busiest rank: a cost function multiplies it with its rates, and a plan
// computes memory from it. The interpreter (engine/exec/bucket_compiler.h) defines the meaning of programs; a test
// compares the two for every program of the decision tree.
#pragma once

#include <cstdint>
#include <vector>

#include "engine/core/compressor.h"
#include "engine/core/gradient_table.h"
#include "engine/core/option.h"
#include "engine/core/topology.h"

namespace gradtune::policies {

struct OpSize {
  int64_t elements = 0;  // encode: elements read; decode: elements written; of a sparse tensor only those present
  int64_t payloads = 1;  // decode: payloads that are added up in each element
  // Encode: bytes of its payloads. Decode: bytes of all payloads that it reads; if they leave out zeros, of the part in
  // use. Collective: bytes that one rank gives, as `count` of comm::Collective; for all_to_all and reduce_scatter, to
  // one receiver.
  int64_t bytes = 0;
  // Collective: the bytes that the busiest link carries in one direction; for payloads the usual number. The ranks
  // of a node share its link to other nodes, so the bytes count for each rank that sends over it. In a flat pairwise
  // exchange each rank sends a part to each rank of the other nodes; the same holds along a dimension.
  int64_t link_bytes = 0;
  double sharing = 1;      // collective: link_bytes over the bytes on one rank's own link (core::link_bytes)
  int codec = -1;          // collective of payloads: their codec, as the option numbers it
  double use = 1;          // collective of payloads: the share that is usually used, which is in link_bytes
  int64_t held_bytes = 0;  // data at hand before the step: the part of the gradient that the rank holds, or payloads
};

// One entry for each step. The program must be one of the decision tree or its extension, or have several rounds; it
// may use levels only if there are levels. `dtype`: of the gradient. Programs of several steps sum a 16-bit gradient
// in fp32.
std::vector<OpSize> op_sizes(const core::Option& option, const core::Extent& bucket, const core::Ranks& ranks,
                             core::TraitsTable known, core::DType dtype = core::DType::f32);

// True if the executor copies a gradient of that dtype to fp32 before such a program, and back after it.
bool is_staged(const core::Option& option, core::DType dtype);

// Bytes of payloads that the bucket keeps in the pool; about the sum over its steps.
int64_t payload_bytes(const std::vector<core::Step>& steps, const std::vector<OpSize>& sizes, const core::Ranks& ranks);

}  // namespace gradtune::policies
