// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// A model and its update, for which another language gives lists: named tensors, and the groups of its optimizers.
// ListedModel and ListedStepper present them to a session. The other program runs the update itself
// (Session::begin_update, end_update).
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "hooks/model.h"
#include "hooks/stepper.h"

namespace gradtune {

// Implemented by the front end of the other language; called on the training thread.
class TrainedLists {
 public:
  virtual ~TrainedLists() = default;

  // The current lists; a tensor with several names may be listed with each. The order is the same on all ranks.
  virtual std::vector<NamedTensor> parameters() = 0;
  virtual std::vector<NamedTensor> buffers() = 0;
  virtual std::vector<Stepper::Group> groups() = 0;
  // Identifies the optimizer: the same pointer means the same optimizer.
  virtual const void* identity() const = 0;
  // The action to take after parameters or groups have changed, in the imperative: "wrap again".
  virtual std::string_view advice() const = 0;

  // Grows when something was registered, so that lists may have changed. It must be cheap, because it is called in
  // every step. It may miss changes, so lists are made again now and then in any case.
  virtual uint64_t version() = 0;
};

// Decides when lists must be made again: when their version changed, in the first updates, and in every hundredth
// update.
class ListClock {
 public:
  bool due(uint64_t version) {
    constexpr int64_t kFirst = 10, kEvery = 100;
    const bool is_due = version != version_ || looks_ < kFirst || looks_ % kEvery == 0;
    ++looks_;
    version_ = version;
    return is_due;
  }

 private:
  uint64_t version_ = 0;
  int64_t looks_ = 0;
};

class ListedModel final : public Model {
 public:
  // Throws for tensors that cannot be sent, see check_sendable. `with_buffers`, `ignored`: as in ModuleModel.
  ListedModel(std::shared_ptr<TrainedLists> lists, bool with_buffers, std::vector<std::string> ignored = {});

  const std::vector<NamedTensor>& parameters() const override { return parameters_; }
  const std::vector<NamedTensor>& own_parameters() const override { return own_; }
  const std::vector<NamedTensor>& buffers() const override { return buffers_; }
  // Buffers may have been replaced, because programs assign new ones.
  core::Status check_unchanged() override;
  void drop_gradients() const override;
  uint64_t buffer_layout() override;

 private:
  void list_buffers();

  const std::shared_ptr<TrainedLists> lists_;
  const bool with_buffers_;
  const std::vector<std::string> ignored_;
  std::vector<NamedTensor> parameters_, own_, buffers_;
  std::vector<bool> trainable_;
  ListClock clock_;
  uint64_t version_ = 0;  // the version of buffers_
  LayoutHash layout_;
};

class ListedStepper final : public Stepper {
 public:
  explicit ListedStepper(std::shared_ptr<TrainedLists> lists);

  const void* identity() const override { return lists_->identity(); }
  std::vector<Group> groups() const override { return lists_->groups(); }
  core::Status check_unchanged() override;
  core::Status can_be_split(bool has_closure) const override;
  // A session that does not own the update never calls these; they throw.
  void step() override;
  std::unique_ptr<const GroupOptions> options() const override;
  void step_part(std::span<const torch::Tensor> parameters, const GroupOptions* options) override;
  void save(torch::serialize::OutputArchive& archive) const override;
  void load(torch::serialize::InputArchive& archive) override;

 private:
  std::vector<const void*> stepped() const;

  const std::shared_ptr<TrainedLists> lists_;
  const std::vector<const void*> stepped_;  // parameters of all groups, with null after each group
  ListClock clock_;
};

}  // namespace gradtune
