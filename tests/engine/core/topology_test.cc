// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
#include "engine/core/topology.h"

#include <gtest/gtest.h>

#include <vector>

namespace gradtune::core {
namespace {

TEST(Seat, NodesCountInTheOrderOfTheirFirstRanksAndRanksInThem) {
  const std::vector<uint64_t> nodes{7, 3, 7, 3, 9, 9};
  const Seat seats[] = {{0, 6, 0, 2, 0, 3}, {1, 6, 0, 2, 1, 3}, {2, 6, 1, 2, 0, 3},
                        {3, 6, 1, 2, 1, 3}, {4, 6, 0, 2, 2, 3}, {5, 6, 1, 2, 2, 3}};
  for (int rank = 0; rank < 6; ++rank) {
    EXPECT_EQ(find_seat(rank, nodes), seats[rank]) << rank;
    EXPECT_TRUE(find_seat(rank, nodes).has_levels());
  }
}

TEST(Seat, NumberedNodeByNodeIsTheSame) {
  const std::vector<uint64_t> nodes{1, 1, 1, 2, 2, 2};
  for (int rank = 0; rank < 6; ++rank) EXPECT_EQ(find_seat(rank, nodes), seat(rank, 6, 3));
}

TEST(Seat, ThereAreNoLevelsWhereNodesAreNotAlikeOrThereIsNothingToTellApart) {
  for (const std::vector<uint64_t>& nodes : std::vector<std::vector<uint64_t>>{{1, 1, 2}, {1, 1}, {1, 2}, {1}}) {
    const Seat found = find_seat(0, nodes);
    EXPECT_FALSE(found.has_levels());
    EXPECT_EQ(found, (Seat{.rank = 0, .size = static_cast<int>(nodes.size())}));
  }
}

}  // namespace
}  // namespace gradtune::core
