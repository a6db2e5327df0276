// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
#include "tests/hooks/fuzz/random_strategy.h"

#include <algorithm>

#include "engine/compress/compressor.h"
#include "engine/core/rng.h"
#include "engine/exec/program.h"
#include "tests/engine/exec/gradient_arenas.h"
#include "tuner/files/strategy_file.h"

namespace gradtune::test {
namespace {

core::GradientTable table_of(const torch::nn::Module& module) {
  core::GradientTable table;
  std::vector<torch::Tensor> known;
  for (const auto& item : module.named_parameters()) {
    const torch::Tensor& p = item.value();
    if (!p.requires_grad() || p.numel() == 0 || std::ranges::any_of(known, [&](const auto& k) { return k.is_same(p); }))
      continue;
    known.push_back(p);
    core::DType dtype = core::DType::f32;
    if (p.scalar_type() == torch::kBFloat16) dtype = core::DType::bf16;
    if (p.scalar_type() == torch::kHalf) dtype = core::DType::f16;
    table.tensors.push_back({.name = item.key(), .shape = p.sizes().vec(), .numel = p.numel(), .dtype = dtype});
  }
  return table;
}

bool is_admitted(const core::Option& option, const OptionsPlan& plan, int ranks, core::TraitsTable known) {
  if (core::needed_fidelity(option, known) > plan.fidelity) return false;
  return std::ranges::all_of(option.codecs, [&](const core::CompressorSpec& codec) {
    const core::CompressorTraits& traits = *core::traits_of(codec, known);
    const bool sends_signs = codec.name == "signsgd" || codec.name == "signum";
    return (plan.momentum_of_dgc || !traits.replaces_momentum) && (plan.unscaled || !sends_signs) &&
           core::most_ranks(traits, codec) >= ranks;
  });
}

}  // namespace

void write_random_strategy(const OptionsPlan& plan, int ranks, uint64_t seed, const torch::nn::Module& module,
                           const std::string& file, const std::set<std::string>& sparse) {
  const core::TraitsTable known = compress::known_traits();
  core::Rng rng = core::Rng(seed).fork("strategy");
  core::GradientTable table = table_of(module);
  rng.shuffle(table.tensors);
  std::vector<std::string> options;
  for (const core::Place place : {core::Place::device, core::Place::host}) {
    for (const std::string& option : exec::all_options(place)) {
      if (is_admitted(core::parse_option(option, known).value(), plan, ranks, known)) options.push_back(option);
    }
  }
  core::Strategy strategy = exec::random_strategy(table, options, rng);
  for (core::Bucket& bucket : strategy.buckets) {
    const bool is_sparse = std::ranges::any_of(bucket.slices, [&](const core::Slice& slice) {
      return sparse.contains(table.tensors[static_cast<size_t>(slice.tensor)].name);
    });
    if (!plan.late || is_sparse || rng.below(3) == 0) continue;
    bucket.due = core::Due::forward;
    if (!exec::compile(strategy, table, {.size = ranks})) bucket.due = core::Due::backward;
  }
  const auto text = tuner::to_json(tuner::strategy_file(table, ranks, plan.fidelity, "random", strategy));
  tuner::write_file_atomically(file, text).value();
}

}  // namespace gradtune::test
