// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// The all-reduce hook of FSDP2: what FSDP reduced over shards is handed over when it is ready, and holds the averages
// over replicas when the backward pass ends. FSDP meanwhile makes gradients of it, which have to be views.
#pragma once

#include <torch/types.h>

#include <vector>

#include "hooks/session.h"

namespace gradtune {

class ReplicaHook {
 public:
  // The session must outlive its backward passes.
  explicit ReplicaHook(Session& session);
  ReplicaHook(const ReplicaHook&) = delete;
  ReplicaHook& operator=(const ReplicaHook&) = delete;

  // `unit` is what the session knows, of the shape and dtype of `reduced`. During a backward pass.
  void run(const torch::Tensor& unit, const torch::Tensor& reduced);

 private:
  void finish();

  struct Waiting {
    torch::Tensor unit, reduced;
  };
  Session& session_;
  std::vector<Waiting> waiting_;  // of the pass under way
};

}  // namespace gradtune
