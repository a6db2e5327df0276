// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
#include <string>
#include <utility>

#include "gradtune/gradtune.h"
#include "hooks/refusal.h"
#include "hooks/session.h"
#include "hooks/trained_by.h"

namespace gradtune {

Optimizer wrap(torch::optim::Optimizer& optimizer, torch::nn::Module& module,
               const c10::intrusive_ptr<c10d::ProcessGroup>& group, const Options& options) {
  return wrap(std::vector<torch::optim::Optimizer*>{&optimizer}, module, group, options);
}

Optimizer wrap(const std::vector<torch::optim::Optimizer*>& optimizers, torch::nn::Module& module,
               const c10::intrusive_ptr<c10d::ProcessGroup>& group, const Options& options) {
  if (!group) refuse("wrap needs a process group, see init_process_group");
  return {std::make_unique<Session>(trained_by(optimizers, module), group, options), optimizers};
}

Optimizer::Optimizer(std::unique_ptr<Session> session, std::vector<torch::optim::Optimizer*> inner)
    : session_(std::move(session)), inner_(std::move(inner)) {}
Optimizer::Optimizer(Optimizer&&) noexcept = default;
Optimizer& Optimizer::operator=(Optimizer&&) noexcept = default;
Optimizer::~Optimizer() {
  // A forked child has none of the threads that would have to end, and leaves the connections to its parent.
  if (session_ && !session_->is_of_this_process()) static_cast<void>(session_.release());
}

Session& Optimizer::session() const {
  if (session_) return *session_;
  refuse("this Optimizer was moved from; use the one that it was moved to");
}

void Optimizer::zero_grad() { session().zero_grad(); }
void Optimizer::step() { session().step(nullptr); }
torch::Tensor Optimizer::step(const std::function<torch::Tensor()>& closure) { return session().step(closure); }

Optimizer::NoSync::NoSync(std::shared_ptr<int> guards) : guards_(std::move(guards)) { ++*guards_; }
Optimizer::NoSync::~NoSync() {
  if (guards_) --*guards_;
}
Optimizer::NoSync& Optimizer::NoSync::operator=(NoSync&& other) noexcept {
  std::swap(guards_, other.guards_);
  return *this;
}
Optimizer::NoSync Optimizer::no_sync() { return NoSync(session().no_sync()); }

void Optimizer::synchronize() { session().synchronize(); }
void Optimizer::broadcast_buffers() { session().broadcast_buffers(); }
void Optimizer::exclude_step() { session().exclude_step(); }
torch::optim::Optimizer& Optimizer::inner(size_t index) {
  session().synchronize();
  if (index < inner_.size()) return *inner_[index];
  refuse("there is no optimizer " + std::to_string(index) + "; " + std::to_string(inner_.size()) +
         " were wrapped, the first is 0");
}
void Optimizer::save(torch::serialize::OutputArchive& archive) const { session().save(archive); }
void Optimizer::load(torch::serialize::InputArchive& archive) { session().load(archive); }
void Optimizer::export_strategy(const std::string& path) const { session().export_strategy(path); }
void Optimizer::save_checkpoint(const std::string& folder) { session().save_checkpoint(folder); }
void Optimizer::load_checkpoint(const std::string& folder) { session().load_checkpoint(folder); }
Optimizer::Progress Optimizer::progress() const { return session().progress(); }
Optimizer::Result Optimizer::result() const { return session().result(); }

}  // namespace gradtune
