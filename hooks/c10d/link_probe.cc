// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
#include "hooks/c10d/link_probe.h"

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
  Probe(const ProbedLink& link, int64_t bytes, size_t at_once)
      : link_(link),
        bytes_(bytes),
        in_(static_cast<size_t>(bytes)),
        out_(at_once * in_.size() * static_cast<size_t>(link.communicator.size())) {}

  // Of so many that begin together, `at_once` at most.
  double us_of(size_t count) {
    std::array<comm::Collective, kAtOnce> collectives;
    for (size_t i = 0; i < count; ++i) {
      collectives[i] = {.kind = Collective::Kind::all_gather,
                        .in = in_.data(),
                        .out = out_.data() + i * in_.size() * static_cast<size_t>(link_.communicator.size()),
                        .count = bytes_,
                        .timeout_ms = link_.timeout_ms};
    }
    const int64_t begin_ns = link_.clock.now_ns();
    const core::Status status = comm::run(link_.communicator, std::span(collectives.data(), count), link_.alarm);
    if (!status) throw core::Exception({status.error().code, "probe of the link: " + status.error().message});
    return static_cast<double>(link_.clock.now_ns() - begin_ns) * 1e-3;
  }

 private:
  const ProbedLink& link_;
  const int64_t bytes_;
  const std::vector<std::byte> in_;
  std::vector<std::byte> out_;
};

// One in three is faster: a rank may come late.
double usual(std::span<double> us) {
  std::ranges::sort(us);
  return us[us.size() / 3];
}

policies::IdleLink probe_messages(const ProbedLink& link) {
  constexpr size_t kTimes = 6;
  Probe probe(link, /*bytes=*/8, kAtOnce);
  std::array<double, kTimes> one_us{}, several_us{};
  probe.us_of(kAtOnce);  // connections and threads wake up
  for (size_t i = 0; i < kTimes; ++i) {
    one_us[i] = probe.us_of(1);
    several_us[i] = probe.us_of(kAtOnce);
  }
  const double all_us = usual(one_us);
  const double busy_us = std::clamp((usual(several_us) - all_us) / (kAtOnce - 1), 0.0, all_us);
  const int messages = core::messages(core::Step::Kind::all_gather, link.communicator.size());
  return {.message_us = all_us / messages, .wait_us = (all_us - busy_us) / messages};
}

double probe_byte_us(const ProbedLink& link, int64_t bytes, double message_us) {
  constexpr size_t kTimes = 3;
  Probe probe(link, bytes, 1);
  std::array<double, kTimes> all_us{};
  probe.us_of(1);  // memory is touched
  for (double& us : all_us) us = probe.us_of(1);
  const auto kind = core::Step::Kind::all_gather;
  const double messages_us = core::messages(kind, link.communicator.size()) * message_us;
  return std::max(usual(all_us) - messages_us, 0.0) /
         static_cast<double>(core::link_bytes(kind, bytes, link.communicator.size()));
}

}  // namespace

policies::IdleLink probe_link(const ProbedLink& link, int64_t most_bytes) {
  if (link.communicator.size() < 2) return {};
  policies::IdleLink idle = probe_messages(link);
  if (const int64_t bytes = most_bytes / link.communicator.size(); bytes > 0) {
    idle.byte_us = probe_byte_us(link, bytes, idle.message_us);
  }
  return idle;
}

}  // namespace gradtune
