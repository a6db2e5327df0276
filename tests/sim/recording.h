// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// Communicators that record the start and the completion of each call. The tests of one total order and of deadlines
// read the records, whoever issues the calls.
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
  int under_way = 0;  // calls of its group in progress when it started, including itself
  int64_t start_ns = 0;
  int64_t end_ns = -1;    // -1: still under way
  bool overtook = false;  // it completed before a call of its group that started earlier
  bool failed = false;
};

// All the calls of one rank, in the order in which they were started. References to its elements stay valid.
using CallLog = std::deque<RecordedCall>;

// Both must outlive the communicator.
std::unique_ptr<comm::Communicator> record(std::unique_ptr<comm::Communicator> inner, Call::Group group,
                                           const World& world, CallLog& log);

}  // namespace gradtune::sim
