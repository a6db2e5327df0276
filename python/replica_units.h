// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// The units of a model that FSDP2 shards, of which each replica holds a shard. A unit's gradient, reduced over shards,
// is handed over when it is ready. It holds the result over replicas at the end of the backward pass. Until then FSDP
// makes gradients from it, which must be views.
#pragma once

#include <torch/types.h>

#include <cstdint>
#include <vector>

#include "hooks/session.h"

namespace gradtune {

class ReplicaUnits {
 public:
  // The session gives sums, and must outlive its backward passes.
  explicit ReplicaUnits(Session& session);
  ReplicaUnits(const ReplicaUnits&) = delete;
  ReplicaUnits& operator=(const ReplicaUnits&) = delete;

  struct Brought {
    torch::Tensor unit;     // the session's parameter, with the shape and dtype of the others
    torch::Tensor reduced;  // over shards; it gets the sum over replicas, divided by `divisor`
    torch::Tensor value;    // `reduced`, or a copy if FSDP changes that in place during the pass
    double divisor = 1;
    int64_t version = 0;  // that `reduced` has at the end, unless something else than FSDP changed it
  };
  // Called in a pass of the session.
  void hand_over(Brought brought);

 private:
  void finish();

  Session& session_;
  std::vector<Brought> waiting_;  // of the current pass
};

}  // namespace gradtune
