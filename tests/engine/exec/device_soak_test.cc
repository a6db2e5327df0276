// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// Runs many steps with gradients on devices whose queues delay work at random; each gives the bits of the host.
#include <gtest/gtest.h>

#include "tests/engine/exec/device_pair.h"

namespace gradtune::exec {
namespace {

using core::DType;

TEST(DeviceSoak, EveryProgramOfTheTreeHasTheBitsOfTheHost) {
  conform(make_table({{37, DType::f32}, {205, DType::f32}, {91, DType::f32}}), {"topk", 0.1}, 1);
}

TEST(DeviceSoak, EveryCompressorHasTheBitsOfTheHostAtBothPlaces) {
  const core::GradientTable table = mixed_table();
  Pair pair(3, 0, table);
  core::Rng rng(7);
  for (const core::Place place : {core::Place::device, core::Place::host}) {
    for (const std::string& option : all_options(place)) {
      pair.run(make_strategy(table, option, 3'000, 2));
      for (int step = 0; step < 2; ++step) ASSERT_TRUE(pair.step(rng)) << option << ": " << pair.message;
    }
  }
}

TEST(DeviceSoak, TenThousandStepsWithRandomDelaysHaveTheBitsOfTheHost) {
  const core::GradientTable table = make_table({{600, DType::f32}, {31, DType::bf16}, {400, DType::f32}});
  const HostDeviceOptions delayed{
      .delay_us = [](const std::string&,
                     core::Rng& rng) { return rng.below(16) == 0 ? static_cast<int64_t>(rng.below(100)) : 0; },
      .seed = 29};
  std::vector<std::string> options;
  for (const core::Place place : {core::Place::device, core::Place::host}) {
    for (std::string& option : all_options(place)) options.push_back(std::move(option));
  }
  Pair pair(2, 0, table, delayed);
  core::Rng rng(31);
  for (int change = 0; change < 100; ++change) {
    core::Strategy strategy = random_strategy(table, options, rng);
    const bool is_late = rng.below(2) == 0;
    for (core::Bucket& bucket : strategy.buckets) {
      const bool may_overflow = to_string(bucket.option).find("fp16") != std::string::npos;
      if (is_late && !may_overflow && rng.below(2) == 0) bucket.due = core::Due::forward;
    }
    pair.run(strategy, rng.below(3) == 0);
    for (int step = 0; step < 100; ++step)
      ASSERT_TRUE(pair.step(rng, step % 25 == 0)) << change << ": " << pair.message;
  }
}

}  // namespace
}  // namespace gradtune::exec
