// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
#include "python/ddp_hook.h"

#include <utility>

namespace gradtune {
namespace {

class Hook final : public c10d::CppCommHookInterface<std::shared_ptr<DdpBridge>> {
 public:
  using CppCommHookInterface::CppCommHookInterface;
  c10::intrusive_ptr<c10::ivalue::Future> runHook(c10d::GradBucket& bucket) override { return state_->run(bucket); }
};

}  // namespace

std::shared_ptr<DdpBridge> DdpBridge::build(c10d::Reducer& reducer, const c10::intrusive_ptr<c10d::ProcessGroup>& group,
                                            Session& session) {
  auto bridge = std::make_shared<DdpBridge>(group, session);
  reducer.register_comm_hook(std::make_unique<Hook>(bridge));
  session.on_averaged([&bridge = *bridge](const auto&) { bridge.finish(); });
  return bridge;
}

c10::intrusive_ptr<c10::ivalue::Future> DdpBridge::run(c10d::GradBucket& bucket) {
  if (session_ == nullptr) {
    std::vector<torch::Tensor> buffer{bucket.getBuffer()};
    buffer.front() /= group_->getSize();
    return group_->allreduce(buffer)->getFuture();
  }
  const bool is_sparse = bucket.getBuffer().is_sparse();  // the bucket holds one parameter
  Waiting waiting{.buffer = bucket.getBuffer(),
                  .parameters = bucket.getParameters(),
                  .gradients = is_sparse ? std::vector{bucket.getBuffer()} : bucket.getGradients(),
                  .done = c10::make_intrusive<c10::ivalue::Future>(c10::TensorType::get())};
  for (size_t i = 0; i < waiting.parameters.size() && !is_sparse; ++i) {
    // DDP lays them out like their parameters, but shows them in row-major order.
    torch::Tensor& gradient = waiting.gradients[i];
    gradient =
        waiting.buffer.as_strided(gradient.sizes(), gradient_strides(waiting.parameters[i]), gradient.storage_offset());
  }
  const auto done = waiting.done;
  waiting_.push_back(std::move(waiting));
  session_->enter_autograd_pass();
  // An index is used because hand_over() may end the pass with an error.
  const size_t at = waiting_.size() - 1;
  for (size_t i = 0; i < waiting_[at].parameters.size(); ++i) {
    session_->hand_over(waiting_[at].parameters[i], waiting_[at].gradients[i]);
  }
  return done;
}

void DdpBridge::finish() {
  std::vector<Waiting> waiting = std::move(waiting_);
  waiting_.clear();
  for (Waiting& bucket : waiting) {
    for (size_t i = 0; i < bucket.parameters.size(); ++i) {
      session_->give_back(bucket.parameters[i], bucket.gradients[i]);
    }
    bucket.done->markCompleted(c10::IValue(bucket.buffer.is_sparse() ? bucket.gradients.front() : bucket.buffer));
  }
}

}  // namespace gradtune
