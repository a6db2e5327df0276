// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
#include "engine/core/topology.h"

#include <gtest/gtest.h>

#include <utility>
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

TEST(Mesh, DimensionsAreThePrimeFactorsTheLargestFirst) {
  const std::pair<int, std::vector<int>> meshes[] = {{1, {}},
                                                     {2, {2}},
                                                     {3, {3}},
                                                     {4, {2, 2}},
                                                     {6, {3, 2}},
                                                     {9, {3, 3}},
                                                     {12, {3, 2, 2}},
                                                     {25, {5, 5}},
                                                     {35, {7, 5}},
                                                     {97, {97}},
                                                     {194, {97, 2}},
                                                     {1000, {5, 5, 5, 2, 2, 2}},
                                                     {1 << 6, std::vector<int>(6, 2)},
                                                     {1 << 30, std::vector<int>(kMostDimensions, 2)}};
  for (const auto& [ranks, sizes] : meshes) EXPECT_EQ(mesh_of(ranks), sizes) << ranks;
}

TEST(Mesh, SubgroupsOfADimensionMakeUpAllRanksAndThoseOfAllDimensionsConnectThem) {
  for (const int ranks : {2, 3, 4, 6, 8, 12, 30, 64}) {
    const Ranks all{.size = ranks};
    std::vector<std::vector<int>> reached;  // what each rank has
    for (int rank = 0; rank < ranks; ++rank) reached.push_back({rank});
    for (int d = 0; all.has(dimension(d)); ++d) {
      const Subgroup group = along(dimension(d), ranks);
      EXPECT_EQ(all.of(dimension(d)), group.size);
      const std::vector<std::vector<int>> before = reached;
      for (int rank = 0; rank < ranks; ++rank) {
        EXPECT_EQ(group.rank_at(group.index_of(rank), rank), rank);
        std::vector<int>& own = reached[static_cast<size_t>(rank)];
        own.clear();
        for (int index = 0; index < group.size; ++index) {
          const int other = group.rank_at(index, rank);
          ASSERT_TRUE(other >= 0 && other < ranks);
          EXPECT_EQ(group.index_of(other), index);
          const std::vector<int>& theirs = before[static_cast<size_t>(other)];
          own.insert(own.end(), theirs.begin(), theirs.end());
        }
      }
    }
    std::vector<int> in_order;
    for (int rank = 0; rank < ranks; ++rank) in_order.push_back(rank);
    for (const std::vector<int>& own : reached) EXPECT_EQ(own, in_order) << ranks;
  }
  EXPECT_FALSE((Ranks{.size = 6}.has(dimension(2))));
  EXPECT_FALSE((Ranks{.size = 4}.has(Level::inter)));
  EXPECT_TRUE((Ranks{.size = 4, .local_size = 2}.has(Level::inter)));
}

}  // namespace
}  // namespace gradtune::core
