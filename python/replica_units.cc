// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
#include "python/replica_units.h"

#include <torch/utils.h>

#include <utility>

namespace gradtune {

ReplicaUnits::ReplicaUnits(Session& session) : session_(session) {
  session_.on_averaged([this] { finish(); });
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
    if (each.reduced.storage().use_count() == 1) {
      throw core::Exception(
          {core::Error::Code::invalid,
           "gradtune: FSDP copied a gradient before it was summed over replicas, and the copy lacks the other "
           "replicas; allowed are modules that run once in a backward pass"});
    }
    if (static_cast<int64_t>(each.reduced._version()) != each.version) {
      throw core::Exception({core::Error::Code::invalid,
                             "gradtune: a gradient of FSDP was changed before it was summed over replicas (by a hook "
                             "of its parameter, or by a second pass of its module?), and the change would be lost; "
                             "allowed is to change it when backward() has returned"});
    }
    session_.give_back(each.unit, each.reduced);
    if (each.divisor != 1) each.reduced.div_(each.divisor);
  }
}

}  // namespace gradtune
