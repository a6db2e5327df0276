// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
#include "python/replica_hook.h"

#include <utility>

namespace gradtune {

ReplicaHook::ReplicaHook(Session& session) : session_(session) {
  session_.on_averaged([this] { finish(); });
}

void ReplicaHook::run(const torch::Tensor& unit, const torch::Tensor& reduced) {
  waiting_.push_back({unit, reduced});
  session_.hand_over(unit, reduced);
}

void ReplicaHook::finish() {
  std::vector<Waiting> waiting = std::move(waiting_);
  waiting_.clear();
  for (Waiting& each : waiting) {
    session_.give_back(each.unit, each.reduced);
    if (each.reduced.storage().use_count() > 1) continue;
    throw core::Exception(
        {core::Error::Code::invalid,
         "gradtune: FSDP copied a gradient before it was averaged over replicas; allowed is a reduce_dtype that is the "
         "parameters' own, and no gradient from an earlier backward pass: zero_grad() before each, or "
         "set_requires_gradient_sync(False) for all but the last"});
  }
}

}  // namespace gradtune
