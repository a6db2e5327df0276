// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
#include "python/replica_hook.h"

#include <torch/utils.h>

#include <utility>

namespace gradtune {

ReplicaHook::ReplicaHook(Session& session) : session_(session) {
  session_.on_averaged([this] { finish(); });
}

// A session may copy a gradient only at the end of the pass, and FSDP has divided it by then.
void ReplicaHook::run(const torch::Tensor& unit, const torch::Tensor& reduced, const Factors& factors) {
  const auto version = static_cast<int64_t>(reduced._version());
  waiting_.push_back({unit, reduced, factors, factors.divisor == 1 ? version : version + 1});
  session_.hand_over(unit, factors.divisor == 1 ? reduced : reduced.clone());
}

void ReplicaHook::finish() {
  std::vector<Waiting> waiting = std::move(waiting_);
  waiting_.clear();
  const torch::NoGradGuard no_grad;
  for (Waiting& each : waiting) {
    if (each.reduced.storage().use_count() == 1) {
      throw core::Exception(
          {core::Error::Code::invalid,
           "gradtune: FSDP copied a gradient before it was averaged over replicas; allowed is a reduce_dtype that is "
           "the parameters' own, and no gradient from an earlier backward pass: zero_grad() before each, or "
           "set_requires_gradient_sync(False) for all but the last"});
    }
    if (static_cast<int64_t>(each.reduced._version()) != each.version) {
      throw core::Exception({core::Error::Code::invalid,
                             "gradtune: a gradient of FSDP was changed before it was averaged over replicas (by a hook "
                             "of its parameter?), "
                             "and the change would be lost; allowed is to change it when backward() has returned"});
    }
    session_.give_back(each.unit, each.reduced);
    if (each.factors.times != 1) each.reduced.mul_(each.factors.times);
    if (each.factors.divisor != 1) each.reduced.div_(each.factors.divisor);
  }
}

}  // namespace gradtune
