// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// Communicators that write down what is started on them and when it was complete: what the tests of one total order
// and of deadlines look at, independently of who issues.
#pragma once

#include <deque>
#include <memory>

#include "engine/comm/communicator.h"
#include "tests/sim/world.h"

namespace gradtune::sim {

struct Call {
  enum class Group : uint8_t { data, control } group;
  comm::Collective::Kind kind;
  comm::WireType type;
  int64_t count;

  bool operator==(const Call&) const = default;
};

struct RecordedCall {
  Call call;
  int under_way = 0;  // of its group when it was started, itself included
  int64_t start_ns = 0;
  int64_t end_ns = -1;    // -1: still under way
  bool overtook = false;  // it completed before another one of its group that was started earlier
  bool failed = false;
};

// All the calls of one rank, in the order in which they were started. References to its elements stay.
using CallLog = std::deque<RecordedCall>;

// Both outlive the communicator.
std::unique_ptr<comm::Communicator> record(std::unique_ptr<comm::Communicator> inner, Call::Group group,
                                           const World& world, CallLog& log);

}  // namespace gradtune::sim
