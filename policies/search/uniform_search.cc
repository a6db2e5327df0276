// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
#include "policies/search/uniform_search.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "policies/cost/timeline.h"
#include "policies/space/schemes.h"

namespace gradtune::policies {
namespace {

constexpr int kMostBuckets = 16;
constexpr size_t kFewBuckets = 4;
constexpr size_t kPromising = 4;  // options

struct Fusion {
  const core::Option* option;
  core::Strategy strategy;
  double end_us;
};

}  // namespace

std::optional<core::Strategy> best_uniform(const Knowledge& knowledge, const CostTable& cost,
                                           std::span<const core::Option> options) {
  const std::vector<Partition> partitions = nested_partitions(knowledge.table, kMostBuckets);
  if (partitions.empty()) return {};
  std::vector<Fusion> found;
  const auto consider = [&](const core::Option& option, const Partition& partition) {
    const bool is_lossy = core::needed_fidelity(option, knowledge.traits) == core::Fidelity::lossy;
    const size_t end = is_lossy ? knowledge.table.first_small() : knowledge.table.tensors.size();
    core::Strategy strategy = apply({.option = option, .label = "", .end = end}, partition, knowledge).strategy;
    auto timeline = Timeline::make(knowledge.table, strategy, cost, knowledge.traits);
    if (timeline) found.push_back({&option, std::move(strategy), timeline.value().run()});
  };
  const size_t few = std::min(kFewBuckets, partitions.size()) - 1;
  for (const core::Option& option : options) consider(option, partitions[few]);
  std::ranges::stable_sort(found, {}, &Fusion::end_us);
  found.resize(std::min(found.size(), kPromising));
  for (size_t i = found.size(); i-- > 0;) {
    const core::Option& option = *found[i].option;
    for (size_t p = 0; p < partitions.size(); ++p) {
      if (p != few) consider(option, partitions[p]);
    }
  }
  const auto best = std::ranges::min_element(found, {}, &Fusion::end_us);
  if (best == found.end()) return {};
  return std::move(best->strategy);
}

}  // namespace gradtune::policies
