// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// The all-reduce hook of FSDP2: a tensor that FSDP reduced over shards is handed over when it is ready, and holds
// the result over replicas at the end of the backward pass. Meanwhile FSDP may divide it in place, and makes
// gradients from it, which must be views.
#pragma once

#include <torch/types.h>

#include <cstdint>
#include <vector>

#include "hooks/session.h"

namespace gradtune {

class ReplicaHook {
 public:
  // The session must outlive its backward passes.
  explicit ReplicaHook(Session& session);
  ReplicaHook(const ReplicaHook&) = delete;
  ReplicaHook& operator=(const ReplicaHook&) = delete;

  // The gradient becomes the average over replicas, times `times`, divided by `divisor`. FSDP does that division on
  // its result over shards when this returns; it does none if the divisor is 1.
  struct Factors {
    double times = 1, divisor = 1;
  };
  // `unit` is the session's parameter, with the shape and dtype of `reduced`. Called during a backward pass.
  void run(const torch::Tensor& unit, const torch::Tensor& reduced, const Factors& factors);

 private:
  void finish();

  struct Waiting {
    torch::Tensor unit, reduced;
    Factors factors;
    int64_t version;  // of `reduced`; FSDP's division raises it by one
  };
  Session& session_;
  std::vector<Waiting> waiting_;  // of the current pass
};

}  // namespace gradtune
