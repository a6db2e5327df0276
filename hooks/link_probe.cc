// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
#include "hooks/link_probe.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <vector>

namespace gradtune {
namespace {

using comm::Collective;

constexpr size_t kAtOnce = 4;

// So many that begin together.
double us_of(comm::Communicator& communicator, const core::Clock& clock, int64_t timeout_ms, size_t count) {
  constexpr int64_t kBytes = 8;
  const auto size = static_cast<size_t>(communicator.size());
  std::vector<std::byte> in(kBytes), out(kAtOnce * kBytes * size);
  std::array<comm::Waiter, kAtOnce> waiters;
  const int64_t begin_ns = clock.now_ns();
  for (size_t i = 0; i < count; ++i) {
    communicator.start({.kind = Collective::Kind::all_gather,
                        .in = in.data(),
                        .out = out.data() + i * kBytes * size,
                        .count = kBytes,
                        .timeout_ms = timeout_ms},
                       waiters[i], 0);
  }
  core::Status first_error;
  for (size_t i = 0; i < count; ++i) {
    core::Status status = waiters[i].result().get();
    if (first_error && !status) first_error = std::move(status);
  }
  if (!first_error) {
    throw core::Exception({first_error.error().code, "probe of the link: " + first_error.error().message});
  }
  return static_cast<double>(clock.now_ns() - begin_ns) * 1e-3;
}

}  // namespace

policies::Latency probe_latency(comm::Communicator& communicator, const core::Clock& clock, int64_t timeout_ms) {
  constexpr size_t kTimes = 6, kUsual = 2;  // one in three is faster: a rank may come late
  if (communicator.size() < 2) return {};
  std::array<double, kTimes> one_us{}, several_us{};
  us_of(communicator, clock, timeout_ms, kAtOnce);  // connections and threads wake up
  for (size_t i = 0; i < kTimes; ++i) {
    one_us[i] = us_of(communicator, clock, timeout_ms, 1);
    several_us[i] = us_of(communicator, clock, timeout_ms, kAtOnce);
  }
  std::ranges::sort(one_us);
  std::ranges::sort(several_us);
  const double all_us = one_us[kUsual];
  const double busy_us = std::clamp((several_us[kUsual] - all_us) / (kAtOnce - 1), 0.0, all_us);
  const int messages = core::messages(core::Step::Kind::all_gather, communicator.size());
  return {.message_us = all_us / messages, .wait_us = (all_us - busy_us) / messages};
}

}  // namespace gradtune
