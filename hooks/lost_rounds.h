// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// Rounds that are lost because a parameter was NaN or infinite on some rank. All ranks then go back to what they last
// exchanged: parameters by OuterStep, buffers here. The optimizer of a rank whose parameters were not finite may have
// such a state too, which would lose all later rounds. So its owner is told (finite_state.h).
#pragma once

#include <cstdint>
#include <vector>

#include "hooks/session.h"

namespace gradtune {

class LostRounds {
 public:
  // Losing that many rounds in a row is an error.
  static constexpr int64_t kMostInARow = 10;

  // The session of the fragment that has the buffers. All ranks have equal buffers now.
  explicit LostRounds(Session& session);

  // An exchange of this round was lost; all ranks call it. `is_here`: this rank's parameters were not finite. Names the
  // ranks on which they were not, to people or in the error.
  void lost(int64_t round, bool is_here);
  // A round ended: all ranks have equal buffers.
  void ended();
  // The same, between rounds: another state was loaded.
  void forget();

  int64_t count() const { return count_; }
  // True once after rounds were lost because of this rank.
  bool take_here();

 private:
  void keep();

  Session& session_;
  std::vector<torch::Tensor> buffers_;  // of the end of the last round
  int64_t count_ = 0, in_a_row_ = 0;
  bool is_lost_ = false;  // the round under way
  bool is_here_ = false;
};

}  // namespace gradtune
