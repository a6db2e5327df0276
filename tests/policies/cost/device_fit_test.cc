// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// Rates of jobs whose gradients are on a device.
#include <gtest/gtest.h>

#include "policies/cost/cost_fit.h"
#include "tests/policies/jobs.h"

namespace gradtune::policies {
namespace {

using core::Place;

const core::GradientTable kTable{
    .tensors = {{.name = "a", .shape = {1000}, .numel = 1000}, {.name = "b", .shape = {3000}, .numel = 3000}}};

core::Strategy strategy_of(const char* option) {
  std::vector<std::vector<core::Slice>> buckets = {{{0, 0, 1000}}, {{1, 0, 3000}}};
  return core::uniform(std::move(buckets), core::parse_option(option, testing::known_traits()).value(), 2);
}

TEST(FitDevice, CopiesOfEachDirectionHaveARateOfTheirOwn) {
  const core::Strategy plain = strategy_of("all_reduce");
  const TimedRun timed{plain,
                       {{0, kToHostStep, 0, 20, 4000},
                        {1, kToHostStep, 20, 50, 12'000},
                        {0, 0, 20, 100},
                        {1, 0, 100, 200},
                        {0, kToDeviceStep, 100, 105, 4000},
                        {1, kToDeviceStep, 200, 213, 12'000}}};
  const Machine machine{.cores = {.of_rank = 0.5, .computing = 0, .host = 1},
                        .on_device = {.gradients = true, .kernels = true}};
  const CostTable fitted =
      fit_cost(std::span(&timed, 1), kTable, {.size = 2}, testing::known_traits(), {}, machine).table;
  EXPECT_EQ(fitted.on_device, machine.on_device);
  EXPECT_NEAR(fitted.to_host.us(8000), 25, 1e-6);
  EXPECT_NEAR(fitted.to_device.us(8000), 9, 1e-6);
  const CostTable prior = prior_cost(fitted, {}).value();
  EXPECT_EQ(prior.to_host, fitted.to_host);
  CostTable unseen = fitted;
  unseen.to_device = {};
  EXPECT_GT(prior_cost(unseen, {}).value().to_device.byte_us, 0) << "who has not copied yet expects it to take time";
  unseen.on_device = {};
  EXPECT_EQ(prior_cost(unseen, {}).value().to_host, CopyRate()) << "gradients of the host are not copied";
}

// Beside work of the host, which is short of cores.
TEST(FitDevice, WhatADeviceDoesTakesAsLongAsItWasSeenTo) {
  const core::Strategy gather = strategy_of("bf16: encode@device all_gather decode@host");
  const TimedRun timed{gather, {{0, 0, 0, 30}, {0, 1, 30, 50}, {0, 2, 10, 50}}};
  const CostTable prior{.ranks = {.size = 2}, .codecs = {{{"bf16"}, Place::device, 5, 0.01, 5, 0.01, 0}}};
  const auto encode_us = [&](const Cores& cores) {
    const CostTable fitted =
        fit_cost(std::span(&timed, 1), kTable, {.size = 2}, testing::known_traits(), prior, {.cores = cores}).table;
    const CodecRate* const device = find_rate(fitted, {"bf16"}, Place::device);
    return device->encode_us + 1000 * device->encode_element_us;
  };
  EXPECT_NEAR(encode_us({1, 0, 1}), 30, 1e-6);
  EXPECT_LT(encode_us({1, 1, 1}), 25) << "on the host it had half a core from 10 on";
}

}  // namespace
}  // namespace gradtune::policies
