// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
#include "engine/core/arenas.h"

#include <gtest/gtest.h>

#include "engine/core/rng.h"
#include "engine/core/strategy.h"

namespace gradtune::core {
namespace {

TensorInfo tensor(int64_t numel, DType dtype, Space space = Space::host) {
  return {.name = "t", .shape = {numel}, .numel = numel, .dtype = dtype, .space = space};
}

TEST(Arenas, AreThoseThatTheTableNeedsByDtypeAndSpace) {
  const GradientTable table{.tensors = {tensor(3, DType::bf16), tensor(5, DType::f32, Space::cuda),
                                        tensor(7, DType::bf16), tensor(11, DType::f32)}};
  const ArenaLayout layout = lay_arenas(table);
  EXPECT_EQ(layout.arenas,
            (std::vector<ArenaInfo>{
                {DType::f32, Space::host, 11}, {DType::f32, Space::cuda, 5}, {DType::bf16, Space::host, 10}}));
  EXPECT_EQ(layout.tensors, (std::vector<TensorPlace>{{2, 0}, {1, 0}, {2, 3}, {0, 0}}));
  EXPECT_EQ(lay_arenas({}), ArenaLayout());
}

// A job on a device can read what a job on the CPU saved, and the other way round.
TEST(Arenas, HaveTheSameNamesAndNumbersWhereverTheyLie) {
  for (const Space space : kSpaces) {
    const ArenaLayout layout = lay_arenas({.tensors = {tensor(3, DType::f16, space), tensor(5, DType::f32, space)}});
    EXPECT_EQ(name_of(layout, 0), "float32");
    EXPECT_EQ(name_of(layout, 1), "float16");
  }
  const ArenaLayout both = lay_arenas({.tensors = {tensor(3, DType::f32, Space::cuda), tensor(5, DType::f32)}});
  EXPECT_EQ(name_of(both, 0), "float32");
  EXPECT_EQ(name_of(both, 1), "float32 2");
}

TEST(Arenas, ABucketHasElementsOfOne) {
  Rng rng(3);
  GradientTable table;
  for (int t = 0; t < 40; ++t) {
    table.tensors.push_back(
        tensor(1 + static_cast<int64_t>(rng.below(50)), kDTypes[rng.below(3)], kSpaces[rng.below(2)]));
  }
  for (const int64_t bytes : {int64_t{60}, int64_t{1} << 30}) {
    EXPECT_TRUE(validate(uniform(cut(table, bytes, bytes, true), plain_all_reduce(), 1), table).ok());
  }
  const GradientTable two{.tensors = {tensor(3, DType::f32), tensor(5, DType::f32, Space::cuda)}};
  const Status mixed = validate(uniform({{{0, 0, 3}, {1, 0, 5}}}, plain_all_reduce(), 1), two);
  ASSERT_FALSE(mixed.ok());
  EXPECT_EQ(mixed.error().message, "bucket 0 mixes memory of several spaces at t");
}

}  // namespace
}  // namespace gradtune::core
