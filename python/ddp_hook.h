// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// A communication hook of DistributedDataParallel that lets a session average the gradients. A DDP bucket hands over
// its gradients when it is ready, and all DDP buckets complete when the session's buckets do. Gradients are found by
// their parameters, because DDP rebuilds its buckets after the first step.
#pragma once

#include <torch/csrc/distributed/c10d/reducer.hpp>

#include <memory>
#include <vector>

#include "hooks/session.h"

namespace gradtune {

// Connects the hook and the session. DDP keeps its hook for good, but a session may end earlier. Then DDP averages
// by a plain all-reduce over its own group.
class DdpBridge {
 public:
  // Throws DDP's error if it has a hook already.
  static std::shared_ptr<DdpBridge> build(c10d::Reducer& reducer, const c10::intrusive_ptr<c10d::ProcessGroup>& group,
                                          Session& session);

  explicit DdpBridge(const c10::intrusive_ptr<c10d::ProcessGroup>& group, Session& session)
      : group_(group), session_(&session) {}

  void end() { session_ = nullptr; }

  c10::intrusive_ptr<c10::ivalue::Future> run(c10d::GradBucket& bucket);

 private:
  struct Waiting {
    torch::Tensor buffer;
    std::vector<torch::Tensor> parameters, gradients;  // gradients are over the buffer, unless it is sparse
    c10::intrusive_ptr<c10::ivalue::Future> done;
  };
  void finish();

  const c10::intrusive_ptr<c10d::ProcessGroup> group_;
  Session* session_;              // null after the session ended
  std::vector<Waiting> waiting_;  // of the current pass
};

}  // namespace gradtune
