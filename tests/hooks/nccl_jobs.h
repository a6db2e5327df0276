// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// Jobs whose gradients NCCL carries between ranks: on the device without hardware with the NCCL of the tests, and on a
// GPU with NCCL itself. Each function starts ranks.
#pragma once

#include <functional>
#include <map>
#include <string>

#include "tests/hooks/device_job.h"

namespace gradtune::test {

struct OverNccl {
  // A job on the device, over Gloo; called on a rank, before it makes a group.
  std::function<DeviceJob(const Rank& rank, DeviceJob job)> place;
  std::map<std::string, std::string> environment = {};  // of the ranks
};

// Every kind of program, with all families of compressors: parameters have the bits of the same job over Gloo. Sums of
// more than two ranks are added in another order, so those programs are compared within rounding.
void expect_values_of_gloo(const OverNccl& over, int size);

// A job that is tuned at exact has the bits of one that is not.
void expect_bits_while_tuning(const OverNccl& over);

// A rank that ends without a word, and one that hangs, are errors on the other ranks, which name it.
void expect_a_dead_rank_to_be_named(const OverNccl& over);
void expect_a_frozen_rank_to_be_named(const OverNccl& over);

}  // namespace gradtune::test
