// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
#include "hooks/link_probe.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <span>
#include <utility>
#include <vector>

namespace gradtune {
namespace {

using comm::Collective;

constexpr size_t kAtOnce = 4;

// All-gathers of so many bytes a rank.
class Probe {
 public:
  Probe(comm::Communicator& communicator, const core::Clock& clock, int64_t timeout_ms, int64_t bytes, size_t at_once)
      : communicator_(communicator),
        clock_(clock),
        timeout_ms_(timeout_ms),
        bytes_(bytes),
        in_(static_cast<size_t>(bytes)),
        out_(at_once * in_.size() * static_cast<size_t>(communicator.size())) {}

  // Of so many that begin together, `at_once` at most.
  double us_of(size_t count) {
    std::array<comm::Waiter, kAtOnce> waiters;
    const int64_t begin_ns = clock_.now_ns();
    for (size_t i = 0; i < count; ++i) {
      communicator_.start({.kind = Collective::Kind::all_gather,
                           .in = in_.data(),
                           .out = out_.data() + i * in_.size() * static_cast<size_t>(communicator_.size()),
                           .count = bytes_,
                           .timeout_ms = timeout_ms_},
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
    return static_cast<double>(clock_.now_ns() - begin_ns) * 1e-3;
  }

 private:
  comm::Communicator& communicator_;
  const core::Clock& clock_;
  const int64_t timeout_ms_, bytes_;
  const std::vector<std::byte> in_;
  std::vector<std::byte> out_;
};

// One in three is faster: a rank may come late.
double usual(std::span<double> us) {
  std::ranges::sort(us);
  return us[us.size() / 3];
}

policies::IdleLink probe_messages(comm::Communicator& communicator, const core::Clock& clock, int64_t timeout_ms) {
  constexpr size_t kTimes = 6;
  Probe probe(communicator, clock, timeout_ms, /*bytes=*/8, kAtOnce);
  std::array<double, kTimes> one_us{}, several_us{};
  probe.us_of(kAtOnce);  // connections and threads wake up
  for (size_t i = 0; i < kTimes; ++i) {
    one_us[i] = probe.us_of(1);
    several_us[i] = probe.us_of(kAtOnce);
  }
  const double all_us = usual(one_us);
  const double busy_us = std::clamp((usual(several_us) - all_us) / (kAtOnce - 1), 0.0, all_us);
  const int messages = core::messages(core::Step::Kind::all_gather, communicator.size());
  return {.message_us = all_us / messages, .wait_us = (all_us - busy_us) / messages};
}

double probe_byte_us(comm::Communicator& communicator, const core::Clock& clock, int64_t timeout_ms, int64_t bytes,
                     double message_us) {
  constexpr size_t kTimes = 3;
  Probe probe(communicator, clock, timeout_ms, bytes, 1);
  std::array<double, kTimes> all_us{};
  probe.us_of(1);  // memory is touched
  for (double& us : all_us) us = probe.us_of(1);
  const auto kind = core::Step::Kind::all_gather;
  const double messages_us = core::messages(kind, communicator.size()) * message_us;
  return std::max(usual(all_us) - messages_us, 0.0) /
         static_cast<double>(core::link_bytes(kind, bytes, communicator.size()));
}

}  // namespace

policies::IdleLink probe_link(comm::Communicator& communicator, const core::Clock& clock, int64_t timeout_ms,
                              int64_t most_bytes) {
  if (communicator.size() < 2) return {};
  policies::IdleLink link = probe_messages(communicator, clock, timeout_ms);
  if (const int64_t bytes = most_bytes / communicator.size(); bytes > 0) {
    link.byte_us = probe_byte_us(communicator, clock, timeout_ms, bytes, link.message_us);
  }
  return link;
}

}  // namespace gradtune
