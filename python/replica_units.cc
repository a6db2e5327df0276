// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
#include "python/replica_units.h"

#include <torch/utils.h>

#include <utility>

namespace gradtune {

ReplicaUnits::ReplicaUnits(Session& session) : session_(session) {
  session_.on_averaged([this](const auto&) { finish(); });
}

void ReplicaUnits::hand_over(Brought brought) {
  const torch::Tensor unit = brought.unit, value = brought.value;
  waiting_.push_back(std::move(brought));
  session_.hand_over(unit, value);
}

void ReplicaUnits::finish() {
  std::vector<Brought> waiting = std::move(waiting_);
  waiting_.clear();
  const torch::NoGradGuard no_grad;
  for (Brought& each : waiting) {
    session_.give_back(each.unit, each.reduced);
    if (each.divisor != 1) each.reduced.div_(each.divisor);
  }
}

}  // namespace gradtune
