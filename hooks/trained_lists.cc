// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
#include "hooks/trained_lists.h"

#include <utility>

#include "hooks/refusal.h"

namespace gradtune {
namespace {

[[noreturn]] void not_ours() { throw core::ProgramError("a session does not run the updates of another program"); }

}  // namespace

ListedModel::ListedModel(std::shared_ptr<TrainedLists> lists, bool with_buffers, std::vector<std::string> ignored)
    : lists_(std::move(lists)), with_buffers_(with_buffers), ignored_(std::move(ignored)) {
  const std::vector<NamedTensor> all = lists_->parameters();
  if (!ignored_.empty()) check_ignored(ignored_, all, lists_->buffers());
  auto [shared, own] = without_ignored(all, ignored_);
  parameters_ = std::move(shared);
  own_ = std::move(own);
  check_sendable("parameter", parameters_);
  for (const NamedTensor& parameter : parameters_) trainable_.push_back(parameter.tensor.requires_grad());
  list_buffers();
}

void ListedModel::list_buffers() {
  if (!with_buffers_) return;
  version_ = lists_->version();
  buffers_ = without_ignored(lists_->buffers(), ignored_).shared;
  check_sendable("buffer", buffers_);
}

core::Status ListedModel::check_unchanged() {
  if (core::Status frozen = check_frozen(parameters_, trainable_, lists_->advice()); !frozen) return frozen;
  if (!clock_.due(lists_->version())) return {};
  list_buffers();
  return check_same("parameter", parameters_, without_ignored(lists_->parameters(), ignored_).shared, lists_->advice());
}

void ListedModel::drop_gradients() const {
  gradtune::drop_gradients(parameters_, trainable_);
  for (const NamedTensor& each : own_) each.tensor.mutable_grad().reset();
}

uint64_t ListedModel::buffer_layout() {
  if (lists_->version() != version_) list_buffers();
  return layout_.of(buffers_);
}

ListedStepper::ListedStepper(std::shared_ptr<TrainedLists> lists) : lists_(std::move(lists)), stepped_(stepped()) {}

std::vector<const void*> ListedStepper::stepped() const {
  std::vector<const void*> stepped;
  for (const Group& group : lists_->groups()) {
    for (const torch::Tensor& parameter : group.parameters) stepped.push_back(parameter.unsafeGetTensorImpl());
    stepped.push_back(nullptr);
  }
  return stepped;
}

core::Status ListedStepper::check_unchanged() {
  if (!clock_.due(lists_->version()) || stepped() == stepped_) return {};
  return invalid(
      "parameters or groups of the optimizer were added, removed or replaced since wrap: they would differ between "
      "ranks; after that, " +
      std::string(lists_->advice()));
}

core::Status ListedStepper::can_be_split(bool /*has_closure*/) const {
  return invalid("a step can not be done in parts: the program runs its own optimizer");
}

void ListedStepper::step() { not_ours(); }
std::unique_ptr<const Stepper::GroupOptions> ListedStepper::options() const { not_ours(); }
void ListedStepper::step_part(std::span<const torch::Tensor> /*parameters*/, const GroupOptions* /*options*/) {
  not_ours();
}
void ListedStepper::save(torch::serialize::OutputArchive& /*archive*/) const { not_ours(); }
void ListedStepper::load(torch::serialize::InputArchive& /*archive*/) { not_ours(); }

}  // namespace gradtune
