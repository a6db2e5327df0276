// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// A strategy says how a job's gradients travel: the buckets, an option for each, and the order in which all ranks
// issue their collectives. Plain data: comparable, hashable, printable. All ranks hold the same strategy in every
// step.
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

// The time at which a bucket's averages are needed: when backward returns, or when the next forward pass first reads
// one of its parameters.
enum class Due : uint8_t { backward, forward };

std::string_view to_string(Due due);
Result<Due> parse_due(std::string_view text);  // "backward" | "forward"

// A run of gradient elements of one arena (arenas.h), in backward order, that is compressed and sent as a whole.
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

// The number of consecutive collectives of the order whose received payloads may be undecoded at the same time.
// Collectives further apart share memory for what they receive. The thread that runs backward decodes when the next
// gradient is ready; a few beyond those in flight need not wait for it.
inline int most_held(const Strategy& strategy) { return strategy.in_flight + 4; }

int64_t numel(const Bucket& bucket);

// The dtype of its gradients; the bucket must be one that validate() admits.
DType dtype_of(const Bucket& bucket, const GradientTable& table);

// True if gradients of that dtype may use the option. Gradients in double precision are only summed as they are,
// because payloads and staging memory are fp32.
bool takes(const Option& option, DType dtype);

// The matrices among a bucket's elements: the whole rows of each tensor that has several dimensions, whose first
// dimension counts rows.
std::vector<Matrix> matrices_of(const Bucket& bucket, const GradientTable& table);

// The measured sparsity of a bucket that is one whole tensor; other buckets count as dense.
Content content_of(const Bucket& bucket, const GradientTable& table);

uint64_t hash(const Strategy& strategy);

// The least fidelity that admits all of the strategy's compressors, which must all be known.
Fidelity needed_fidelity(const Option& option, TraitsTable known);
Fidelity needed_fidelity(const Strategy& strategy, TraitsTable known);

// Checks that every element of the table is in exactly one slice, and that buckets are contiguous and of one arena.
// Also checks that every collective is issued once and in its program's order, and that in_flight >= 1. The error
// names the first violation. The compiler (engine/exec/program.h) checks that a program can run, also in a bucket
// that is due at the next forward pass.
Status validate(const Strategy& strategy, const GradientTable& table);

// Issues first collectives bucket by bucket, and a bucket's later ones `lag` buckets later, so that the link has
// work while a bucket is decoded and encoded again. This is the default order of planners.
std::vector<Issue> staggered_order(const std::vector<Bucket>& buckets, int lag = 1);

// Sets the default flow: collectives in staggered order, with those of two buckets in flight: one bucket on the wire
// and one that gets ready.
void set_default_flow(Strategy& strategy);

// Cuts the table into buckets of one arena, of at most `bytes` each (the first of at most `first_bytes`). If `split`
// is set, tensors are split; otherwise a bucket ends with the tensor that fills it, as in PyTorch DDP, and may be
// larger.
std::vector<std::vector<Slice>> cut(const GradientTable& table, int64_t first_bytes, int64_t bytes, bool split);

// Gives all buckets the same option, in staggered order.
Strategy uniform(std::vector<std::vector<Slice>> buckets, const Option& option, int in_flight);

// For people: one line for each run of buckets with the same option and due time.
std::string describe(const Strategy& strategy, const GradientTable& table);

}  // namespace gradtune::core
