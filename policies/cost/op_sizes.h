// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// How much each step of a program handles on the busiest rank: what a cost function multiplies with its rates, and what
// a plan needs of memory. The meaning of programs is the interpreter's (engine/exec/bucket_compiler.h); a test holds
// the two against each other for every program of the decision tree.
#pragma once

#include <cstdint>
#include <vector>

#include "engine/core/compressor.h"
#include "engine/core/gradient_table.h"
#include "engine/core/option.h"
#include "engine/core/topology.h"

namespace gradtune::policies {

struct OpSize {
  int64_t elements = 0;  // encode: that it reads; decode: that it writes; of sparse tensors those that are there
  int64_t payloads = 1;  // decode: that are added up in each element
  int64_t bytes = 0;  // encode: of its payloads; decode: of all payloads that it reads, of those that leave out zeros
                      // as far as they are used; collective: that one rank
                      // gives (of all_to_all and reduce_scatter, to one receiver), as `count` of comm::Collective
  // Collective: what the busiest link carries of it in one direction. The ranks of a node share its link to other
  // nodes, so it counts for each of them that has something to give there; in a flat exchange of pairs each gives a
  // part to each rank of the other nodes, and so does each along a dimension. Of payloads what is usually used.
  int64_t link_bytes = 0;
  double sharing = 1;      // collective: link_bytes over what one rank's own link carries (core::link_bytes)
  int codec = -1;          // collective of payloads: whose, as the option counts them
  double use = 1;          // ... and the share of them that is usually used, which is in link_bytes
  int64_t held_bytes = 0;  // what is at hand before the step: as much of the gradient as the rank has, or payloads
};

// One for each step. The program is one of the decision tree or its extension, or has several rounds; with levels only
// where there are some. `dtype`: of the gradient. Programs of several steps sum one of 16 bits in fp32.
std::vector<OpSize> op_sizes(const core::Option& option, const core::Extent& bucket, const core::Ranks& ranks,
                             core::TraitsTable known, core::DType dtype = core::DType::f32);

// Whether the executor copies a gradient of that dtype to fp32 before such a program, and back after it.
bool is_staged(const core::Option& option, core::DType dtype);

// Bytes of payloads that the bucket keeps in the pool, in about the order of the sum over its steps.
int64_t payload_bytes(const std::vector<core::Step>& steps, const std::vector<OpSize>& sizes, const core::Ranks& ranks);

}  // namespace gradtune::policies
