// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
#include "engine/exec/cuda/device.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>

namespace gradtune::exec::cuda {
namespace {

using testing::HasSubstr;
using testing::MatchesRegex;

TEST(CudaDevice, WithoutOneItSaysSo) {
  const core::SteadyClock clock;
  const auto made = make_cuda_device({.device = 1000}, clock);
  ASSERT_FALSE(made.ok());
  EXPECT_THAT(made.error().message, MatchesRegex("CUDA device 1000 can not be used: .+"));
}

// Runs if there is a GPU.
TEST(CudaDevice, CopiesBehindFencesThatHaveTimes) {
  const core::SteadyClock clock;
  auto made = make_cuda_device({}, clock);
  if (!made.ok()) GTEST_SKIP() << made.error().message;
  Device& device = *made.value();
  constexpr int64_t kBytes = 1 << 20;
  const AlignedBytes from = AlignedBytes::zeros(kBytes, &device.pinned());
  const AlignedBytes there = AlignedBytes::zeros(kBytes, &device.memory());
  const AlignedBytes back = AlignedBytes::zeros(kBytes, &device.pinned());
  std::memset(from.data(), 7, kBytes);
  compress::Queue& out = device.queue(Device::Stream::to_device);
  compress::Queue& home = device.queue(Device::Stream::to_host);
  const int64_t before_ns = clock.now_ns();
  out.copy(there.data(), from.data(), kBytes);
  const core::Fence sent = out.mark();
  ASSERT_TRUE(home.after(sent, 1000).ok());
  home.copy(back.data(), there.data(), kBytes);
  const core::Fence returned = home.mark();
  ASSERT_TRUE(returned.wait(10'000).ok());
  EXPECT_EQ(std::memcmp(from.data(), back.data(), kBytes), 0);
  ASSERT_TRUE(sent.time_ns() && returned.time_ns());
  EXPECT_LE(*sent.time_ns(), *returned.time_ns());
  EXPECT_GE(*sent.time_ns(), before_ns - 1'000'000);
}

}  // namespace
}  // namespace gradtune::exec::cuda
