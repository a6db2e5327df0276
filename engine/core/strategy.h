// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// A strategy says how a job's gradients travel: the buckets, an option for each, and the one order in which their
// collectives are issued. Plain data: comparable, hashable, printable. All ranks hold the same one in every step.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "engine/core/gradient_table.h"
#include "engine/core/option.h"
#include "engine/core/result.h"

namespace gradtune::core {

struct Slice {
  int32_t tensor;  // position in the gradient table
  int64_t offset;  // elements
  int64_t length;  // elements, > 0

  bool operator==(const Slice&) const = default;
};

// When a bucket's averages are needed: when backward returns, or when the next forward pass first reads one of its
// parameters.
enum class Due : uint8_t { backward, forward };

std::string_view to_string(Due due);
Result<Due> parse_due(std::string_view text);  // "backward" | "forward"

// A run of gradient elements of one arena (arenas.h), in backward order, that is compressed and sent as one.
struct Bucket {
  std::vector<Slice> slices;
  Option option;
  Due due = Due::backward;

  bool operator==(const Bucket&) const = default;
};

// The collective at position `step` of a bucket's program.
struct Issue {
  int32_t bucket;
  int32_t step;

  bool operator==(const Issue&) const = default;
};

struct Strategy {
  std::vector<Bucket> buckets;
  std::vector<Issue> order;  // every collective of every bucket, once
  int in_flight = 1;         // collectives that may be under way at once, >= 1

  bool operator==(const Strategy&) const = default;
};

// How many collectives in a row, of the order, may have brought payloads that are not decoded yet: memory for what they
// bring is shared by those further apart. The thread that runs backward decodes when the next gradient is ready, so a
// few beyond those in flight do not have to wait for it.
inline int most_held(const Strategy& strategy) { return strategy.in_flight + 4; }

int64_t numel(const Bucket& bucket);

// Of its gradients; the bucket must be one that validate() admits.
DType dtype_of(const Bucket& bucket, const GradientTable& table);

// Whether gradients of that dtype may travel so. Those in double precision are summed as they are: payloads and staging
// are of fp32.
bool takes(const Option& option, DType dtype);

// The matrices among a bucket's elements: of each tensor of several dimensions, the first of which counts rows, the
// whole rows in it.
std::vector<Matrix> matrices_of(const Bucket& bucket, const GradientTable& table);

// What is zero of a bucket: of one that is a tensor, as far as it was measured; of others nothing.
Content content_of(const Bucket& bucket, const GradientTable& table);

uint64_t hash(const Strategy& strategy);

// The least fidelity that admits all of the strategy's compressors, which are all among the known ones.
Fidelity needed_fidelity(const Option& option, TraitsTable known);
Fidelity needed_fidelity(const Strategy& strategy, TraitsTable known);

// Every element of the table in exactly one slice, buckets contiguous and of one arena, every collective issued once
// and in its program's order, in_flight >= 1. The error names the first thing that does not hold. Whether a program can
// run, also in a bucket that is due at the next forward pass, compiling says (engine/exec/program.h).
Status validate(const Strategy& strategy, const GradientTable& table);

// Issues first collectives bucket by bucket, and a bucket's later ones `lag` buckets later, so that the link has work
// while a bucket is decoded and encoded again. The default order of planners.
std::vector<Issue> staggered_order(const std::vector<Bucket>& buckets, int lag = 1);

// Sets the default flow: collectives in staggered order, and in flight those of two buckets, one that is on the wire
// and one that gets ready.
void set_default_flow(Strategy& strategy);

// Cuts the table into buckets of one arena of at most `bytes` each (the first of at most `first_bytes`), splitting
// tensors where `split` is set; without it a bucket ends with the tensor that fills it, as in PyTorch DDP, and may be
// larger.
std::vector<std::vector<Slice>> cut(const GradientTable& table, int64_t first_bytes, int64_t bytes, bool split);

// One option for all the buckets, in staggered order.
Strategy uniform(std::vector<std::vector<Slice>> buckets, const Option& option, int in_flight);

// For people: one line per run of alike buckets.
std::string describe(const Strategy& strategy, const GradientTable& table);

}  // namespace gradtune::core
