// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
#include "policies/space/sparse_tensors.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <optional>
#include <utility>

#include "policies/cost/program_cost.h"

namespace gradtune::policies {

bool has_sparse(const core::GradientTable& table) { return std::ranges::any_of(table.tensors, is_sparse); }

std::span<const SparseScheme> sparse_schemes() {
  using core::CompressorSpec, core::Place;
  static constexpr SparseScheme kSchemes[] = {
      {"gather", [](const CompressorSpec& codec, Place place, int) { return core::gather_payloads(codec, place); }},
      {"two_step", [](const CompressorSpec& codec, Place place, int) { return core::two_step(codec, place); }},
      {"recursive_doubling", core::recursive_doubling}};
  return kSchemes;
}

std::vector<core::Option> sparse_options(const Knowledge& knowledge, std::span<const SparseScheme> schemes) {
  std::vector<core::Option> options{core::plain_all_reduce()};
  for (const core::CompressorSpec& codec : knowledge.codecs) {
    const core::CompressorTraits* const traits = core::traits_of(codec, knowledge.traits);
    if (traits == nullptr || !traits->takes_rows) continue;
    for (const core::Place place : {core::Place::device, core::Place::host}) {
      if (place == core::Place::host && knowledge.host_threads <= 0) continue;
      for (const SparseScheme& scheme : schemes) {
        core::Option option = scheme.make(codec, place, knowledge.ranks.size);
        if (std::ranges::find(options, option) == options.end()) options.push_back(std::move(option));
      }
    }
  }
  return options;
}

core::Option best_sparse_option(const core::TensorInfo& tensor, const Knowledge& knowledge, const CostTable& cost,
                                std::span<const SparseScheme> schemes) {
  const core::Matrix matrix{0, tensor.numel / tensor.content.row, tensor.content.row};
  const core::Extent extent(tensor.numel, {&matrix, 1}, tensor.content);
  core::Option best = core::plain_all_reduce();
  double least_us = std::numeric_limits<double>::infinity();
  for (core::Option& option : sparse_options(knowledge, schemes)) {
    const auto work = program_work(cost, option, extent, knowledge.traits, tensor.dtype);
    if (!work) continue;
    const double us = std::accumulate(work->begin(), work->end(), 0.0);
    if (us >= least_us) continue;
    least_us = us;
    best = std::move(option);
  }
  return best;
}

core::Strategy with_sparse_tensors(core::Strategy strategy, const core::GradientTable& table,
                                   const std::vector<core::Option>& option_of_tensor) {
  if (!has_sparse(table)) return strategy;
  std::vector<core::Bucket> buckets;
  std::vector<bool> is_there(table.tensors.size());
  // Adds the tensors of that dtype before position `end`.
  const auto add_before = [&](size_t end, core::DType dtype) {
    for (size_t t = 0; t < end; ++t) {
      const core::TensorInfo& tensor = table.tensors[t];
      if (is_there[t] || !is_sparse(tensor) || tensor.dtype != dtype || tensor.numel == 0) continue;
      is_there[t] = true;
      buckets.push_back({.slices = {{static_cast<int32_t>(t), 0, tensor.numel}}, .option = option_of_tensor[t]});
    }
  };
  const auto is_before = [&](size_t end, core::DType dtype) {
    for (size_t t = 0; t < end; ++t) {
      if (!is_there[t] && is_sparse(table.tensors[t]) && table.tensors[t].dtype == dtype) return true;
    }
    return false;
  };
  for (const core::Bucket& bucket : strategy.buckets) {
    core::Bucket rest{.slices = {}, .option = bucket.option, .due = bucket.due};
    const auto end_rest = [&] {
      if (!rest.slices.empty()) buckets.push_back(rest);
      rest.slices.clear();
    };
    for (const core::Slice& slice : bucket.slices) {
      const auto t = static_cast<size_t>(slice.tensor);
      const core::DType dtype = table.tensors[t].dtype;
      if (is_before(t, dtype)) {
        end_rest();
        add_before(t, dtype);
      }
      if (!is_sparse(table.tensors[t])) rest.slices.push_back(slice);
    }
    end_rest();
  }
  for (const core::DType dtype : core::kDTypes) add_before(table.tensors.size(), dtype);
  strategy.buckets = std::move(buckets);
  core::set_default_flow(strategy);
  return strategy;
}

core::Strategy with_sparse_tensors(core::Strategy strategy, const Knowledge& knowledge, const CostTable& cost,
                                   std::span<const SparseScheme> schemes) {
  std::vector<core::Option> options(knowledge.table.tensors.size());
  for (size_t t = 0; t < options.size(); ++t) {
    const core::TensorInfo& tensor = knowledge.table.tensors[t];
    if (is_sparse(tensor)) options[t] = best_sparse_option(tensor, knowledge, cost, schemes);
  }
  return with_sparse_tensors(std::move(strategy), knowledge.table, options);
}

core::GradientTable without_sparse(core::GradientTable table) {
  for (core::TensorInfo& tensor : table.tensors) {
    if (!is_sparse(tensor)) continue;
    tensor.numel = 0;
    tensor.content = {};
  }
  return table;
}

}  // namespace gradtune::policies
