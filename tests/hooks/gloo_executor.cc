// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
#include "tests/hooks/gloo_executor.h"

#include <gtest/gtest.h>

#include "hooks/c10d/communicator.h"

namespace gradtune::test {

exec::RankGroups connect(const c10::intrusive_ptr<c10d::Store>& store, int rank, int size, int local_size,
                         const std::string& prefix) {
  const core::Seat seat = core::seat(rank, size, local_size);
  const auto make = [&](const std::string& name, int r, int of) {
    return make_c10d_communicator(make_gloo_backend(prefix + name, store, r, of, 30'000, 1));
  };
  exec::RankGroups groups{.seat = seat, .flat = make("flat", rank, size), .control = make("control", rank, size)};
  groups.intra = make("intra" + std::to_string(seat.node), seat.local_rank, local_size);
  groups.inter = make("inter" + std::to_string(seat.local_rank), seat.node, seat.nodes);
  return groups;
}

std::vector<double> summed(comm::Communicator& group, std::vector<double> values) {
  const core::Status status = comm::run(group, {.kind = comm::Collective::Kind::all_reduce,
                                                .type = comm::WireType::f64,
                                                .out = reinterpret_cast<std::byte*>(values.data()),
                                                .count = static_cast<int64_t>(values.size()),
                                                .timeout_ms = 30'000});
  EXPECT_TRUE(status.ok());
  return values;
}

}  // namespace gradtune::test
