// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
#include "hooks/fragment.h"

#include <gmock/gmock.h>
#include <torch/types.h>

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

namespace gradtune::test {
namespace {

TEST(Fragment, TakesAboutAnEqualPartOfTheElementsAndAllTakeEachParameterOnce) {
  for (const std::vector<int64_t>& sizes :
       std::vector<std::vector<int64_t>>{{10, 10, 10, 10}, {100, 1, 1, 1}, {1, 1, 1, 100}, {5, 5, 90, 5, 5, 5}}) {
    std::vector<NamedTensor> parameters;
    for (size_t p = 0; p < sizes.size(); ++p) {
      parameters.push_back({"p" + std::to_string(p), torch::zeros({sizes[p]}, torch::requires_grad())});
    }
    parameters.insert(parameters.begin() + 1, {"frozen", torch::zeros({1000})});
    for (int64_t count = 1; count <= 4; ++count) {
      std::vector<int64_t> owners(parameters.size(), 0), elements(static_cast<size_t>(count), 0);
      std::vector<int64_t> of_fragment(parameters.size(), -1);
      for (int64_t f = 0; f < count; ++f) {
        const std::vector<std::string> names = outside({.number = f, .count = count}, parameters);
        for (size_t p = 0; p < parameters.size(); ++p) {
          if (std::ranges::find(names, parameters[p].name) != names.end()) continue;
          ++owners[p];
          of_fragment[p] = f;
          if (parameters[p].tensor.requires_grad()) elements[static_cast<size_t>(f)] += parameters[p].tensor.numel();
        }
      }
      EXPECT_THAT(owners, testing::Each(1));
      EXPECT_EQ(of_fragment[1], 0) << "frozen";
      of_fragment.erase(of_fragment.begin() + 1);
      EXPECT_TRUE(std::ranges::is_sorted(of_fragment));
      EXPECT_THAT(elements, testing::Each(testing::Gt(0)));
      if (sizes == std::vector<int64_t>{10, 10, 10, 10} && count != 3) {
        EXPECT_THAT(elements, testing::Each(40 / count));
      }
    }
  }
}

TEST(Fragment, NamesItsFiles) {
  EXPECT_EQ(files_of({.number = 0, .count = 3}, "a/job.jsonl"), "a/job.jsonl");
  EXPECT_EQ(files_of({.number = 2, .count = 3}, "a/job.jsonl"), "a/job.fragment-3.jsonl");
  EXPECT_EQ(files_of({.number = 1, .count = 3}, "a.b/one,two.json"), "a.b/one.fragment-2,two.fragment-2.json");
  EXPECT_EQ(files_of({.number = 1, .count = 3}, ""), "");
}

}  // namespace
}  // namespace gradtune::test
