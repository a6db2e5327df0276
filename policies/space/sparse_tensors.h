// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// Tensors of which few rows are not zero (core::Content), and the schemes that leave the others out. Such a tensor is a
// bucket of its own. Zen (OSDI 2025) chooses between two schemes by the bytes they send, once; here all that the
// executor runs compete, dense sums included, by what the cost table says that each takes, latency and codecs included.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "policies/cost/cost_table.h"
#include "policies/cost/knowledge.h"

namespace gradtune::policies {

// Whether it was measured to be sparse on one rank; the sum of all ranks may be dense.
inline bool is_sparse(const core::TensorInfo& tensor) {
  return tensor.content.of_one < 1 && tensor.dtype != core::DType::f64;
}
bool has_sparse(const core::GradientTable& table);

// A way to sum a sparse tensor: the program for a compressor that takes rows. Two schemes may have the same one.
struct SparseScheme {
  std::string_view name;
  core::Option (*make)(const core::CompressorSpec& codec, core::Place place, int ranks);
};

// The table of this family.
//   gather              Every rank sends its rows to every rank (AGsparse).
//   two_step            Ranks send rows to their owners. Owners add them up and send the sums to all (balanced
//                       parallelism, section 3 of Zen).
//   recursive_doubling  Ranks send sums of ever more ranks to ever more distant ones (SparCML). Of a prime number of
//                       ranks it is the gather.
std::span<const SparseScheme> sparse_schemes();

// What a sparse tensor may get: the plain sum, and each of those schemes with each admitted compressor that takes rows.
std::vector<core::Option> sparse_options(const Knowledge& knowledge,
                                         std::span<const SparseScheme> schemes = sparse_schemes());

// The one that takes least, all its steps one after the other; the plain sum where the table has no rates.
core::Option best_sparse_option(const core::TensorInfo& tensor, const Knowledge& knowledge, const CostTable& cost,
                                std::span<const SparseScheme> schemes = sparse_schemes());

// Without elements of sparse tensors: what is left to be cut into buckets.
core::GradientTable without_sparse(core::GradientTable table);

// The strategy, which may lack sparse tensors, with a bucket of its own for each of them, under these options; the rest
// of the buckets as they were, in the default flow. The same strategy where no tensor is sparse.
core::Strategy with_sparse_tensors(core::Strategy strategy, const core::GradientTable& table,
                                   const std::vector<core::Option>& option_of_tensor);

// ... each under the best one.
core::Strategy with_sparse_tensors(core::Strategy strategy, const Knowledge& knowledge, const CostTable& cost,
                                   std::span<const SparseScheme> schemes = sparse_schemes());

// What Zen compares (its section 2.3): the volume of balanced parallelism, and of sums in a hierarchy of pairs
// (recursive doubling), in units of what one rank has. `gamma`: the density of sums of 1, 2, 4, ... ranks over that of
// one.
struct SharesOf {
  double balanced = 0, hierarchical = 0;
};
SharesOf zen_shares(std::span<const double> gamma);

// The same over the bytes of the dense tensor, where lists take twice their values (coordinates), and densities are
// those of the content. Any number of ranks: sums are along the dimensions of their mesh.
double balanced_parallelism_share(const core::Content& content, int ranks);
double hierarchical_share(const core::Content& content, int ranks);

}  // namespace gradtune::policies
