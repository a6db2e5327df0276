// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// The communicators of a group that lives in one address space: each rank's view of an object that all of them share. A
// Group has size(), start(rank, collective, sink, token), abort(rank) and leave(rank); leave() returns when nothing of
// that rank is under way. Internal to such groups.
#pragma once

#include <memory>
#include <utility>
#include <vector>

#include "engine/comm/communicator.h"

namespace gradtune::comm {

template <class Group>
class GroupMember final : public Communicator {
 public:
  GroupMember(std::shared_ptr<Group> group, int rank) : group_(std::move(group)), rank_(rank) {}
  ~GroupMember() override { group_->leave(rank_); }

  int rank() const override { return rank_; }
  int size() const override { return group_->size(); }
  void start(const Collective& collective, CompletionSink& sink, uint64_t token) override {
    if (await_buffers(collective, sink, token)) group_->start(rank_, collective, sink, token);
  }
  void abort() override { group_->abort(rank_); }

 private:
  std::shared_ptr<Group> group_;
  int rank_;
};

// In the order of ranks. The group ends with the last of them.
template <class Group>
std::vector<std::unique_ptr<Communicator>> members_of(const std::shared_ptr<Group>& group) {
  std::vector<std::unique_ptr<Communicator>> members;
  for (int rank = 0; rank < group->size(); ++rank) members.push_back(std::make_unique<GroupMember<Group>>(group, rank));
  return members;
}

}  // namespace gradtune::comm
