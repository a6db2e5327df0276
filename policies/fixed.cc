// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// Policy `fixed`: sends the given strategies to the race at once. It leaves out strategies that do not fit the table
// or use something that the job does not admit; if none are left, the baseline stays.
#include "policies/policy.h"
#include "policies/space/schemes.h"

namespace gradtune::policies {
namespace {

class Fixed final : public Policy {
 public:
  explicit Fixed(const PolicyOptions& options) : options_(options) {}

  std::string_view name() const override { return "fixed"; }

  Proposal propose(const Knowledge& knowledge) override {
    Proposal proposal{.candidates = {}, .final = true};
    for (const Candidate& candidate : options_.fixed) {
      if (static_cast<int>(proposal.candidates.size()) == options_.most_finalists) break;
      if (admitted(candidate.strategy, knowledge)) proposal.candidates.push_back(candidate);
    }
    return proposal;
  }

  void learn(const core::Measurement&) override {}

 private:
  const PolicyOptions options_;
};

}  // namespace

std::unique_ptr<Policy> make_fixed(const PolicyOptions& options) { return std::make_unique<Fixed>(options); }

}  // namespace gradtune::policies
