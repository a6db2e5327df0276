// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// Policy `zen`: the choice of Zen (Wang et al., OSDI 2025, section 2.3), for comparison. A sparse tensor gets
// balanced parallelism if that sends fewer bytes than the hierarchical, centralized scheme. Otherwise it gets the
// latter: recursive doubling, which is the all-gather on a prime number of ranks. Other tensors stay in the
// baseline's buckets. Latency, codecs and overlap do not count, and the choice is never repeated.
#include <memory>

#include "policies/policy.h"
#include "policies/space/baseline.h"
#include "policies/space/sparse_tensors.h"

namespace gradtune::policies {
namespace {

class Zen final : public Policy {
 public:
  std::string_view name() const override { return "zen"; }

  Proposal propose(const Knowledge& knowledge) override {
    if (knowledge.ranks.size < 2 || !has_sparse(knowledge.table)) return {.candidates = {}, .final = true};
    std::vector<core::Option> options(knowledge.table.tensors.size());
    int balanced = 0, hierarchical = 0;
    for (size_t t = 0; t < options.size(); ++t) {
      const core::TensorInfo& tensor = knowledge.table.tensors[t];
      if (!is_sparse(tensor)) continue;
      const bool is_balanced = balanced_parallelism_share(tensor.content, knowledge.ranks.size) <
                               hierarchical_share(tensor.content, knowledge.ranks.size);
      ++(is_balanced ? balanced : hierarchical);
      options[t] = is_balanced ? core::two_step({"rows"}, core::Place::device)
                               : core::recursive_doubling({"rows"}, core::Place::device, knowledge.ranks.size);
    }
    Candidate candidate = baselines(knowledge.table, core::Fidelity::exact).front();
    candidate.strategy = with_sparse_tensors(std::move(candidate.strategy), knowledge.table, options);
    candidate.label =
        "zen: rows, " + std::to_string(balanced) + " two_step, " + std::to_string(hierarchical) + " recursive_doubling";
    return {.candidates = {std::move(candidate)}, .final = true};
  }

  void learn(const core::Measurement& /*measurement*/) override {}
};

}  // namespace

std::unique_ptr<Policy> make_zen(const PolicyOptions& /*options*/) { return std::make_unique<Zen>(); }

}  // namespace gradtune::policies
