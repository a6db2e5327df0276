// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// Tensors with few nonzero rows (core::Content), and the schemes that leave out the other rows. Such a tensor has a
// bucket of its own. Zen (OSDI 2025) chooses once between two schemes by the bytes they send. Here all programs that
// the executor runs compete, including dense sums, by their times from the cost table, with latency and codecs.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "policies/cost/cost_table.h"
#include "policies/cost/knowledge.h"

namespace gradtune::policies {

// True if the tensor was measured to be sparse on one rank; the sum of all ranks may be dense.
inline bool is_sparse(const core::TensorInfo& tensor) {
  return tensor.content.of_one < 1 && tensor.dtype != core::DType::f64;
}
bool has_sparse(const core::GradientTable& table);

// A way to sum a sparse tensor: the program for a compressor that takes rows. Two schemes may have the same program.
struct SparseScheme {
  std::string_view name;
  core::Option (*make)(const core::CompressorSpec& codec, core::Place place, int ranks);
};

// The table of schemes:
// - gather: Every rank sends its rows to every rank (AGsparse).
// - two_step: Ranks send rows to their owners. Owners add them up and send the sums to all (balanced parallelism,
//   section 3 of Zen).
// - recursive_doubling: Ranks send sums of ever more ranks to ever more distant ones (SparCML). With a prime number
//   of ranks it is the gather.
std::span<const SparseScheme> sparse_schemes();

// The options for a sparse tensor: the plain sum, and each of those schemes with each admitted compressor that takes
// rows.
std::vector<core::Option> sparse_options(const Knowledge& knowledge,
                                         std::span<const SparseScheme> schemes = sparse_schemes());

// The fastest one, with its steps one after another; the plain sum if the table has no rates.
core::Option best_sparse_option(const core::TensorInfo& tensor, const Knowledge& knowledge, const CostTable& cost,
                                std::span<const SparseScheme> schemes = sparse_schemes());

// The table without the elements of sparse tensors: the part that remains to be cut into buckets.
core::GradientTable without_sparse(core::GradientTable table);

// The strategy with a separate bucket for each sparse tensor, which it may lack, under these options. The other
// buckets stay, in the default flow. Returns the same strategy if no tensor is sparse.
core::Strategy with_sparse_tensors(core::Strategy strategy, const core::GradientTable& table,
                                   const std::vector<core::Option>& option_of_tensor);

// The same, each under the best option.
core::Strategy with_sparse_tensors(core::Strategy strategy, const Knowledge& knowledge, const CostTable& cost,
                                   std::span<const SparseScheme> schemes = sparse_schemes());

}  // namespace gradtune::policies
