// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// Saves the state of a session to a checkpoint and continues from one. All data that was read is checked before
// anything is changed. Collective: all ranks call save() or load() between two steps.
#pragma once

#include <functional>
#include <span>
#include <string>
#include <vector>

#include "hooks/checkpoint.h"
#include "hooks/commands.h"
#include "hooks/learning.h"

namespace gradtune {

class Resume {
 public:
  // `lost`: called if an error leaves the session without a strategy, so that it cannot go on.
  Resume(const SessionParts& parts, Learning& learning, Commands& commands,
         std::function<void(const core::Error& error)> lost)
      : of_(parts), learning_(learning), commands_(commands), lost_(std::move(lost)) {}

  void save(const std::string& folder) const;
  // Returns the reason why tuning starts again; empty if it continues.
  std::string load(const std::string& folder);

 private:
  tuner::SavedRank saved_rank() const;
  std::string resume(const SavedFile& file);
  core::Status fits(const SavedFile& file) const;
  void go_on(const SavedFile& file, const tuner::Action& announced);
  void start_again(const SavedFile& file, const std::string& committed);
  void take_over(const SavedFile& file);
  void copy(const core::GradientTable& table, const AllResiduals& from, const std::vector<std::span<float>>& to) const;

  const SessionParts of_;
  Learning& learning_;
  Commands& commands_;
  const std::function<void(const core::Error& error)> lost_;
};

}  // namespace gradtune
