// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// Tests the outer step of training in rounds.
#include "hooks/outer_step.h"

#include <gmock/gmock.h>
#include <torch/types.h>
#include <torch/utils.h>

#include <limits>
#include <vector>

#include "tests/hooks/jobs.h"

namespace gradtune::test {
namespace {

using testing::HasSubstr;

TEST(OuterStep, TakesLowPrecisionParametersWithAnchorsInFp32) {
  const torch::NoGradGuard no_grad;
  torch::Tensor parameter = torch::full({4}, 1.0, torch::kBFloat16);
  OuterStep outer({parameter}, {.lr = 0.5, .momentum = 0});
  const std::vector<torch::Tensor> change{torch::full({4}, 1.0 / 1024, torch::kBFloat16)};
  for (int step = 0; step < 32; ++step) {  // each is below half a unit of bf16
    EXPECT_EQ(outer.step(change), OuterStep::Outcome::stepped);
  }
  EXPECT_EQ(parameter[0].item<float>(), 1 - 32 * 0.5F / 1024);
}

TEST(OuterStep, WhatIsLateIsAddedToTheStepBefore) {
  const torch::NoGradGuard no_grad;
  const auto changes = [](double value) { return std::vector<torch::Tensor>{torch::full({4}, value, torch::kDouble)}; };
  torch::Tensor one = torch::zeros({4}, torch::kDouble), other = torch::zeros({4}, torch::kDouble);
  OuterStep at_once({one}, {}), in_parts({other}, {});
  for (int step = 1; step < 5; ++step) {
    at_once.step(changes(0.75 * step));
    in_parts.step(changes(0.5 * step));
    in_parts.step(changes(0.25 * step), /*is_late=*/true);
    const torch::Tensor before = other.clone();
    in_parts.step(changes(0), /*is_late=*/true);
    EXPECT_TRUE(torch::equal(other, before));
    EXPECT_TRUE(torch::allclose(one, other, /*rtol=*/1e-12));
    EXPECT_TRUE(torch::allclose(at_once.momenta()[0], in_parts.momenta()[0], /*rtol=*/1e-12));
  }
}

TEST(OuterStep, SaysIfThisRankIsWhyAStepIsLost) {
  const torch::NoGradGuard no_grad;
  constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
  torch::Tensor parameter = torch::ones({4});
  OuterStep outer({parameter}, {});
  EXPECT_EQ(outer.step({torch::full({4}, kNan)}), OuterStep::Outcome::lost);
  parameter[2] = kNan;
  EXPECT_EQ(outer.step({torch::full({4}, kNan)}), OuterStep::Outcome::lost_here);
  EXPECT_TRUE(torch::equal(parameter, torch::ones({4})));
  outer.keep_going();
  parameter[2] = kNan;  // in the round after
  EXPECT_EQ(outer.step({torch::full({4}, kNan)}), OuterStep::Outcome::lost);
}

TEST(OuterStep, StateOfAnotherModelIsRefused) {
  OuterStep outer({torch::zeros({4}), torch::zeros({2, 3})}, {});
  EXPECT_THAT(message_of([&] { outer.restore(std::vector<torch::Tensor>{torch::zeros({4})}); }),
              HasSubstr("has 1 tensors; allowed is one for each"));
  EXPECT_THAT(message_of([&] {
                outer.restore(std::vector<torch::Tensor>{torch::zeros({4}), torch::zeros({3, 2})});
              }),
              HasSubstr("trained parameter 1 has another shape"));
}

}  // namespace
}  // namespace gradtune::test
