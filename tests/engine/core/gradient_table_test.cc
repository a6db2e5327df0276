// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
#include "engine/core/gradient_table.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <set>

namespace gradtune::core {
namespace {

GradientTable example() {
  return {.tensors = {
              {.name = "head.bias", .shape = {10}, .numel = 10, .dtype = DType::f32, .ready_us = 0},
              {.name = "head.weight",
               .shape = {10, 20},
               .numel = 200,
               .dtype = DType::bf16,
               .ready_us = 5},
              {.name = "scale", .shape = {}, .numel = 1, .dtype = DType::f16, .ready_us = 9}}};
}

TEST(GradientTable, counts_elements_and_bytes) {
  EXPECT_EQ(example().numel(), 211);
  EXPECT_EQ(example().bytes(), 40 + 400 + 2);
  EXPECT_EQ(GradientTable{}.numel(), 0);
  EXPECT_EQ(GradientTable{}.bytes(), 0);
}

TEST(GradientTable, fingerprint_does_not_depend_on_order_or_times) {
  GradientTable table = example();
  std::reverse(table.tensors.begin(), table.tensors.end());
  table.tensors[1].ready_us = 77;
  EXPECT_EQ(table.fingerprint(), example().fingerprint());
}

TEST(GradientTable, fingerprint_depends_on_names_shapes_and_dtypes) {
  std::set<uint64_t> prints = {example().fingerprint(), GradientTable{}.fingerprint()};
  const auto expect_new = [&](auto change) {
    GradientTable table = example();
    change(table.tensors);
    EXPECT_TRUE(prints.insert(table.fingerprint()).second);
  };
  expect_new([](auto& tensors) { tensors[0].name = "head.bia"; });
  expect_new([](auto& tensors) { tensors[1].shape = {20, 10}; });
  expect_new([](auto& tensors) { tensors[1].shape = {200}; });
  expect_new([](auto& tensors) { tensors[2].dtype = DType::f32; });
  expect_new([](auto& tensors) { tensors.pop_back(); });
}

TEST(DType, names_and_widths) {
  EXPECT_EQ(to_string(DType::f32), "float32");
  EXPECT_EQ(to_string(DType::bf16), "bfloat16");
  EXPECT_EQ(to_string(DType::f16), "float16");
  EXPECT_EQ(bytes_per_element(DType::f32), 4);
  EXPECT_EQ(bytes_per_element(DType::bf16), 2);
  EXPECT_EQ(bytes_per_element(DType::f16), 2);
}

}  // namespace
}  // namespace gradtune::core
