// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// Backward is requested from a device long before it computes: gradients are ready when the device computes them,
// and not when hooks run.
#include "hooks/ready_times.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <future>
#include <memory>
#include <thread>

#include "tests/engine/exec/host_device.h"

namespace gradtune {
namespace {

constexpr std::chrono::microseconds kEach(3000);

class SetClock final : public core::Clock {
 public:
  int64_t now_ns() const override { return ns; }
  int64_t ns = 1'000'000;
};

TEST(ReadyTimes, OnTheHostAreThoseOfHooksLessWhatGradtuneDidThere) {
  SetClock clock;
  ReadyTimes ready(clock, nullptr);
  for (int pass = 0; pass < 2; ++pass) {
    ready.begin(3);
    ready.saw(2, 0);
    clock.ns += 5'000'000;
    ready.saw(0, 1.5);
    clock.ns += 1'000'000;
    ready.saw(1, 2);
    ready.end();
    const auto& times = ready.times();
    ASSERT_EQ(times.size(), 3U);
    EXPECT_EQ(times[0].position, 2);
    EXPECT_EQ(times[0].us, 0);
    EXPECT_EQ(times[1].position, 0);
    EXPECT_EQ(times[1].us, 3500);
    EXPECT_EQ(times[2].us, 4000);
    EXPECT_FALSE(ready.waited_ms(clock.ns));
  }
}

// Each gradient takes the device 3 ms, and all are requested at once.
TEST(ReadyTimes, OnADeviceAreWhenItComesToThem) {
  const core::SteadyClock clock;
  const auto device = std::make_shared<exec::HostDevice>();
  ReadyTimes ready(clock, device);
  const auto compute = [&] { device->current().ask([] { std::this_thread::sleep_for(kEach); }); };
  std::promise<void> go_on;
  device->current().ask([stopped = go_on.get_future().share()] { stopped.wait(); });
  ready.begin(4);
  for (int32_t position = 0; position < 4; ++position) {
    compute();
    ready.saw(position, 100);
  }
  compute();
  ready.end();
  EXPECT_TRUE(ready.times().empty()) << "the device has not come to the last one yet";
  EXPECT_EQ(ready.waited_ms(clock.now_ns()), 0);
  go_on.set_value();
  ASSERT_TRUE(device->current().mark().wait(10'000).ok());
  const int64_t ended_ns = clock.now_ns();
  const auto& times = ready.times();
  ASSERT_EQ(times.size(), 4U);
  EXPECT_EQ(times[0].us, 0);
  for (size_t i = 1; i < times.size(); ++i)
    EXPECT_GE(times[i].us, times[i - 1].us + static_cast<double>(kEach.count()));
  EXPECT_GE(ready.waited_ms(ended_ns + 7'000'000).value(), 7);
  EXPECT_EQ(ready.waited_ms(ended_ns - 1'000'000'000), 0);
}

// As with adapters on experts: more gradients than a device has marks.
TEST(ReadyTimes, OfThousandsOfGradientsAreKnown) {
  const core::SteadyClock clock;
  const auto device = std::make_shared<exec::HostDevice>();
  ReadyTimes ready(clock, device);
  constexpr int32_t kTensors = 5000, kStretch = 1000;
  ready.begin(kTensors + 1);  // one of them is not used
  for (int32_t position = kTensors - 1; position >= 0; --position) {
    if (position % kStretch == 0) device->current().ask([] { std::this_thread::sleep_for(kEach); });
    ready.saw(position, 0);
  }
  ready.end();
  ASSERT_TRUE(device->current().mark().wait(10'000).ok());
  const auto& times = ready.times();
  ASSERT_EQ(times.size(), static_cast<size_t>(kTensors));
  EXPECT_EQ(times[0].us, 0);
  for (int32_t i = 0; i < kTensors; ++i) {
    const auto at = static_cast<size_t>(i);
    EXPECT_EQ(times[at].position, kTensors - 1 - i);
    EXPECT_GE(times[at].us, i == 0 ? 0 : times[at - 1].us);
    // The gradient before a stretch's last took no time, and the next ones wait for it, except for a few without a
    // mark.
    EXPECT_GE(times[at].us, static_cast<double>(std::max(i - 10, 0) / kStretch * kEach.count()));
  }
}

TEST(ReadyTimes, AreNotToldWhereADeviceNeverComesToThem) {
  const core::SteadyClock clock;
  const auto device = std::make_shared<exec::HostDevice>(
      exec::HostDeviceOptions{.hangs = [](const std::string& queue) { return queue == "current"; }});
  ReadyTimes ready(clock, device);
  ready.begin(1);
  device->current().ask([] {});
  ready.saw(0, 0);
  ready.end();
  EXPECT_TRUE(ready.times().empty());
  EXPECT_EQ(ready.waited_ms(clock.now_ns()), 0);
  device->close();
}

}  // namespace
}  // namespace gradtune
