// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// A model and who updates it, of which another language gives lists: tensors with their names, and the groups of its
// optimizers. What they are it tells a session by way of ListedModel and ListedStepper. The update is the other
// program's own (Session::begin_update, end_update).
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "hooks/model.h"
#include "hooks/stepper.h"

namespace gradtune {

// Implemented by whoever knows the other language; called on the thread that trains.
class TrainedLists {
 public:
  virtual ~TrainedLists() = default;

  // As they are at this moment; what has several names may be there with each. An order that is the same on all ranks.
  virtual std::vector<NamedTensor> parameters() = 0;
  virtual std::vector<NamedTensor> buffers() = 0;
  virtual std::vector<Stepper::Group> groups() = 0;
  // What the optimizer is known by: the same pointer, the same optimizer.
  virtual const void* identity() const = 0;
  // What to do after parameters or groups have changed, as an order to people: "wrap again".
  virtual std::string_view advice() const = 0;

  // Grows when something was registered, so that lists may be others. Cheap, in every step. It may miss changes: lists
  // are made again now and then in any case.
  virtual uint64_t version() = 0;
};

// When lists have to be made again: when their version is another one, in the first updates, and in every hundredth.
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
  // Throws for what can not be sent, see check_sendable. `with_buffers`, `ignored`: as ModuleModel's.
  ListedModel(std::shared_ptr<TrainedLists> lists, bool with_buffers, std::vector<std::string> ignored = {});

  const std::vector<NamedTensor>& parameters() const override { return parameters_; }
  const std::vector<NamedTensor>& own_parameters() const override { return own_; }
  const std::vector<NamedTensor>& buffers() const override { return buffers_; }
  // Buffers may be others than before: programs assign new ones.
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
  uint64_t version_ = 0;  // of buffers_
  LayoutHash layout_;
};

class ListedStepper final : public Stepper {
 public:
  explicit ListedStepper(std::shared_ptr<TrainedLists> lists);

  const void* identity() const override { return lists_->identity(); }
  std::vector<Group> groups() const override { return lists_->groups(); }
  core::Status check_unchanged() override;
  core::Status can_be_split(bool has_closure) const override;
  // What a session that does not own the update never calls: they throw.
  void step() override;
  std::unique_ptr<const GroupOptions> options() const override;
  void step_part(std::span<const torch::Tensor> parameters, const GroupOptions* options) override;
  void save(torch::serialize::OutputArchive& archive) const override;
  void load(torch::serialize::InputArchive& archive) override;

 private:
  std::vector<const void*> stepped() const;

  const std::shared_ptr<TrainedLists> lists_;
  const std::vector<const void*> stepped_;  // parameters of all groups, with null behind each group
  ListClock clock_;
};

}  // namespace gradtune
