// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
#include "hooks/lost_rounds.h"

#include <torch/utils.h>

#include <algorithm>
#include <string>
#include <utility>

#include "hooks/refusal.h"

namespace gradtune {
namespace {

// "rank 1", "ranks 1, 3"; empty if there is none.
std::string ranks_with(const std::vector<uint64_t>& values) {
  std::string text;
  size_t count = 0;
  for (size_t rank = 0; rank < values.size(); ++rank) {
    if (values[rank] == 0) continue;
    text += (count++ > 0 ? ", " : "") + std::to_string(rank);
  }
  return count == 0 ? "" : (count == 1 ? "rank " : "ranks ") + text;
}

}  // namespace

LostRounds::LostRounds(Session& session) : session_(session) { keep(); }

void LostRounds::keep() {
  const torch::NoGradGuard no_grad;
  const std::vector<NamedTensor>& buffers = session_.buffers();
  buffers_.resize(buffers.size());
  for (size_t b = 0; b < buffers.size(); ++b) buffers_[b] = buffers[b].tensor.detach().clone();
}

void LostRounds::lost(int64_t round, bool is_here) {
  const torch::NoGradGuard no_grad;
  const std::vector<NamedTensor>& buffers = session_.buffers();
  for (size_t b = 0; b < std::min(buffers.size(), buffers_.size()); ++b) {
    const torch::Tensor& buffer = buffers[b].tensor;
    if (buffer.sizes() == buffers_[b].sizes()) buffer.detach().copy_(buffers_[b]);
  }
  is_here_ = is_here_ || is_here;
  const std::string ranks = ranks_with(session_.gather(is_here ? 1 : 0));
  const std::string why = ranks.empty() ? "the mean of finite changes was not finite, as a 16-bit sum may be"
                                        : "a parameter was not finite on " + ranks;
  if (!std::exchange(is_lost_, true)) {
    ++count_;
    ++in_a_row_;
  }
  if (in_a_row_ >= kMostInARow) {
    refuse(std::to_string(in_a_row_) + " rounds in a row were lost, the last one because " + why +
           "; all ranks have the parameters of the last round that was not lost");
  }
  session_.say("gradtune: round " + std::to_string(round) + " is lost: " + why +
               ". All ranks went back to what they last exchanged" +
               (ranks.empty() ? "" : ", and the optimizer's state there has 0 where it was not finite") + '\n');
}

void LostRounds::ended() {
  if (std::exchange(is_lost_, false)) return;
  in_a_row_ = 0;
  keep();
}

void LostRounds::forget() {
  is_lost_ = is_here_ = false;
  in_a_row_ = 0;
  keep();
}

bool LostRounds::take_here() { return std::exchange(is_here_, false); }

}  // namespace gradtune
