// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// A communication hook of DistributedDataParallel that has a session average the gradients: a bucket of DDP's hands its
// gradients over when it is ready, and all of DDP's buckets are done when the session's are. Gradients are found by
// their parameters, as DDP makes its buckets anew after the first step.
#pragma once

#include <torch/csrc/distributed/c10d/reducer.hpp>

#include <memory>
#include <vector>

#include "hooks/session.h"

namespace gradtune {

// What hook and session know of each other. DDP keeps its hook for good, and a session may end before: DDP then
// averages by a plain all-reduce, over its own group.
class DdpBridge {
 public:
  // Throws what DDP says where it has a hook already.
  static std::shared_ptr<DdpBridge> build(c10d::Reducer& reducer, const c10::intrusive_ptr<c10d::ProcessGroup>& group,
                                          Session& session);

  explicit DdpBridge(const c10::intrusive_ptr<c10d::ProcessGroup>& group, Session& session)
      : group_(group), session_(&session) {}

  void end() { session_ = nullptr; }

  c10::intrusive_ptr<c10::ivalue::Future> run(c10d::GradBucket& bucket);

 private:
  struct Waiting {
    torch::Tensor buffer;
    std::vector<torch::Tensor> parameters, gradients;  // the latter over the buffer, where it is not sparse
    c10::intrusive_ptr<c10::ivalue::Future> done;
  };
  void finish();

  const c10::intrusive_ptr<c10d::ProcessGroup> group_;
  Session* session_;              // null once it ended
  std::vector<Waiting> waiting_;  // of the pass under way
};

}  // namespace gradtune
