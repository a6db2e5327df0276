// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
#include "gradtune/gradtune.h"
#include "hooks/session.h"

namespace gradtune {

Optimizer wrap(torch::optim::Optimizer& optimizer, torch::nn::Module& module,
               c10::intrusive_ptr<c10d::ProcessGroup> group, const Options& options) {
  if (!group)
    throw core::Exception({core::Error::Code::invalid, "gradtune: wrap needs a process group, see init_process_group"});
  return Optimizer(std::make_unique<Session>(optimizer, module, std::move(group), options));
}

Optimizer::Optimizer(std::unique_ptr<Session> session) : session_(std::move(session)) {}
Optimizer::Optimizer(Optimizer&&) noexcept = default;
Optimizer& Optimizer::operator=(Optimizer&&) noexcept = default;
Optimizer::~Optimizer() = default;

void Optimizer::zero_grad() { session_->zero_grad(); }
void Optimizer::step() { session_->step(nullptr); }
torch::Tensor Optimizer::step(const std::function<torch::Tensor()>& closure) { return session_->step(closure); }

Optimizer::NoSync::NoSync(Session& session) : session_(session) { session_.enter_no_sync(); }
Optimizer::NoSync::~NoSync() { session_.leave_no_sync(); }
Optimizer::NoSync Optimizer::no_sync() { return NoSync(*session_); }

void Optimizer::exclude_step() { session_->exclude_step(); }
torch::optim::Optimizer& Optimizer::inner() { return session_->optimizer(); }
void Optimizer::save(torch::serialize::OutputArchive& archive) const { session_->save(archive); }
void Optimizer::load(torch::serialize::InputArchive& archive) { session_->load(archive); }
void Optimizer::export_strategy(const std::string& path) const { session_->export_strategy(path); }
void Optimizer::save_checkpoint(const std::string& folder) { session_->save_checkpoint(folder); }
void Optimizer::load_checkpoint(const std::string& folder) { session_->load_checkpoint(folder); }
Optimizer::Progress Optimizer::progress() const { return session_->progress(); }
Optimizer::Result Optimizer::result() const { return session_->result(); }

}  // namespace gradtune
