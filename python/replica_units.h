// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// The units of a model that FSDP2 shards, of which each replica holds a shard. A unit's gradient, reduced over shards,
// is handed over when it is ready. It holds the result over replicas at the end of the backward pass. FSDP makes
// gradients from it before that, which must be views; the caller checks that they are.
#pragma once

#include <torch/types.h>

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
  };
  // Called in a pass of the session.
  void hand_over(Brought brought);

 private:
  void finish();

  Session& session_;
  std::vector<Brought> waiting_;  // of the current pass
};

}  // namespace gradtune
