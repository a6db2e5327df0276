// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
#include "engine/exec/residual_owners.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "engine/core/rng.h"

namespace gradtune::exec {
namespace {

// Compares with a record of every element.
TEST(ResidualOwners, KnowOfEveryElementWhoLeftIt) {
  constexpr int64_t kElements = 60;
  core::Rng rng(7);
  for (int run = 0; run < 50; ++run) {
    std::vector<OwnedRange> holders;
    std::vector<std::string> of_element(kElements);
    for (int change = 0; change < 40; ++change) {
      const auto begin = static_cast<int64_t>(rng.below(kElements + 1));
      const int64_t end = begin + static_cast<int64_t>(rng.below(static_cast<uint64_t>(kElements - begin + 1)));
      const std::string codecs = "topk:" + std::to_string(rng.below(3));
      std::vector<std::string> others(kElements);
      for (const OwnedRange& other : claim(holders, begin, end, codecs)) {
        for (int64_t i = other.begin; i < other.end; ++i) others[static_cast<size_t>(i)] = other.codecs;
      }
      for (int64_t i = 0; i < kElements; ++i) {
        std::string& element = of_element[static_cast<size_t>(i)];
        const bool is_taken = i >= begin && i < end;
        EXPECT_EQ(others[static_cast<size_t>(i)], is_taken && element != codecs ? element : "") << i;
        if (is_taken) element = codecs;
      }
      std::vector<std::string> held(kElements);
      int64_t last = 0;
      for (const OwnedRange& each : holders) {
        ASSERT_LE(last, each.begin) << "in order, without overlap";
        ASSERT_LT(each.begin, each.end);
        last = each.end;
        for (int64_t i = each.begin; i < each.end; ++i) held[static_cast<size_t>(i)] = each.codecs;
      }
      EXPECT_EQ(held, of_element);
      EXPECT_LE(holders.size(), static_cast<size_t>(2 * change + 1));
    }
  }
}

}  // namespace
}  // namespace gradtune::exec
