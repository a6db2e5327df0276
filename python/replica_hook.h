// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// The all-reduce hook of FSDP2: what FSDP reduced over shards is handed over when it is ready, and holds the result
// over replicas when the backward pass ends. FSDP meanwhile may divide it in place, and makes gradients of it, which
// have to be views.
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

  // The gradient becomes the average over replicas, times `times`, divided by `divisor`: FSDP does that division, when
  // this returns, to what it reduced over shards, and does none where it is 1.
  struct Factors {
    double times = 1, divisor = 1;
  };
  // `unit` is what the session knows, of the shape and dtype of `reduced`. During a backward pass.
  void run(const torch::Tensor& unit, const torch::Tensor& reduced, const Factors& factors);

 private:
  void finish();

  struct Waiting {
    torch::Tensor unit, reduced;
    Factors factors;
    int64_t version;  // of `reduced`, which FSDP's division raises by one
  };
  Session& session_;
  std::vector<Waiting> waiting_;  // of the pass under way
};

}  // namespace gradtune
