// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
#include "hooks/c10d/link_probe.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <ctime>
#include <span>
#include <utility>
#include <vector>

namespace gradtune {
namespace {

using comm::Collective;

constexpr size_t kAtOnce = 4;

void check(const core::Status& status) {
  if (!status) throw core::Exception({status.error().code, "probe of the link: " + status.error().message});
}

// All-gathers with a given number of bytes for each rank.
class Probe {
 public:
  Probe(const ProbedLink& link, int64_t bytes, size_t at_once)
      : link_(link),
        bytes_(bytes),
        all_bytes_(bytes * link.communicator.size()),
        in_(zeros(bytes)),
        out_(zeros(static_cast<int64_t>(at_once) * all_bytes_)) {}

  // True if `own` is true on any rank; the result is the same on all ranks.
  bool is_on_any(bool own) {
    set_first(std::byte{own});
    us_of(1);
    return std::ranges::any_of(gathered(), [](std::byte told) { return told != std::byte{0}; });
  }

  // Microseconds for `count` collectives that begin together; at most `at_once` of them run at a time.
  double us_of(size_t count) {
    std::array<comm::Collective, kAtOnce> collectives;
    for (size_t i = 0; i < count; ++i) {
      collectives[i] = {.kind = Collective::Kind::all_gather,
                        .in = in_.data(),
                        .out = out_.data() + static_cast<int64_t>(i) * all_bytes_,
                        .count = bytes_,
                        .timeout_ms = link_.timeout_ms};
    }
    const int64_t begin_ns = link_.clock.now_ns();
    check(comm::run(link_.communicator, std::span(collectives.data(), count), link_.alarm));
    return static_cast<double>(link_.clock.now_ns() - begin_ns) * 1e-3;
  }

 private:
  exec::AlignedBytes zeros(int64_t bytes) const {
    return exec::AlignedBytes::zeros(bytes, link_.device == nullptr ? nullptr : &link_.device->memory());
  }

  void set_first(std::byte value) {
    if (link_.device == nullptr) {
      in_.data()[0] = value;
      return;
    }
    compress::Queue& queue = link_.device->queue(exec::Device::Stream::collectives);
    queue.fill(in_.data(), value, 1);
    check(queue.mark().wait(link_.timeout_ms));
  }

  std::vector<std::byte> gathered() const {
    const auto size = static_cast<size_t>(all_bytes_);
    if (link_.device == nullptr) return {out_.data(), out_.data() + size};
    exec::AlignedBytes on_host = exec::AlignedBytes::zeros(all_bytes_, &link_.device->pinned());
    compress::Queue& queue = link_.device->queue(exec::Device::Stream::collectives);
    queue.copy(on_host.data(), out_.data(), all_bytes_);
    const core::Status copied = queue.mark().wait(link_.timeout_ms);
    if (!copied) on_host.abandon();  // a late copy may still write there
    check(copied);
    return {on_host.data(), on_host.data() + size};
  }

  const ProbedLink& link_;
  const int64_t bytes_, all_bytes_;
  exec::AlignedBytes in_, out_;
};

// Takes a value that one measurement in three beats, because a rank may come late.
double usual(std::span<double> us) {
  std::ranges::sort(us);
  return us[us.size() / 3];
}

policies::IdleLink probe_messages(const ProbedLink& link) {
  constexpr size_t kTimes = 6;
  Probe probe(link, /*bytes=*/8, kAtOnce);
  std::array<double, kTimes> one_us{}, several_us{};
  probe.us_of(kAtOnce);  // wakes up connections and threads
  for (size_t i = 0; i < kTimes; ++i) {
    one_us[i] = probe.us_of(1);
    several_us[i] = probe.us_of(kAtOnce);
  }
  const double all_us = usual(one_us);
  const double busy_us = std::clamp((usual(several_us) - all_us) / (kAtOnce - 1), 0.0, all_us);
  const int messages = core::messages(core::Step::Kind::all_gather, link.communicator.size());
  return {.message_us = all_us / messages, .wait_us = (all_us - busy_us) / messages};
}

// CPU time of all threads of this process, which do nothing else meanwhile.
double cpu_us() {
  timespec time{};
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &time);
  return static_cast<double>(time.tv_sec) * 1e6 + static_cast<double>(time.tv_nsec) * 1e-3;
}

// Measures larger and larger messages until they take clearly longer than an empty one. It stops there, because the
// sizes that a fast link needs would take seconds on a slow one. All ranks stop as soon as one rank has enough.
void probe_bytes(const ProbedLink& link, int64_t most_bytes, Probed& probed) {
  constexpr size_t kTimes = 3;
  constexpr int64_t kFirstBytes = 64 << 10, kMore = 4;
  constexpr double kClearly = 4, kLongUs = 20'000;
  constexpr double kLeastByteUs = 1e-6;  // on a busy machine an empty message may take longer: bytes are not free then
  const auto kind = core::Step::Kind::all_gather;
  const int size = link.communicator.size();
  const double messages_us = core::messages(kind, size) * probed.link.message_us;
  Probe agreement(link, /*bytes=*/1, 1);
  for (int64_t bytes = std::min(kFirstBytes, most_bytes / size);; bytes = std::min(kMore * bytes, most_bytes / size)) {
    Probe probe(link, bytes, 1);
    probe.us_of(1);  // a first run touches the memory and opens the connections' windows
    const bool is_enough = probe.us_of(1) >= kClearly * messages_us + kLongUs || bytes == most_bytes / size;
    if (!agreement.is_on_any(is_enough)) continue;
    std::array<double, kTimes> all_us{}, busy_us{};
    for (size_t i = 0; i < kTimes; ++i) {
      const double before_us = cpu_us();
      all_us[i] = probe.us_of(1);
      busy_us[i] = cpu_us() - before_us;
    }
    const double bytes_us = std::max(usual(all_us) - messages_us, 0.0);
    const auto link_bytes = static_cast<double>(core::link_bytes(kind, bytes, size));
    probed.link.byte_us = std::max(bytes_us / link_bytes, kLeastByteUs);
    probed.cores = bytes_us > 0 && link.device == nullptr ? usual(busy_us) / bytes_us : 0;
    return;
  }
}

}  // namespace

Probed probe_link(const ProbedLink& link, int64_t most_bytes) {
  if (link.communicator.size() < 2) return {};
  Probed probed{.link = probe_messages(link)};
  if (most_bytes >= link.communicator.size()) probe_bytes(link, most_bytes, probed);
  return probed;
}

}  // namespace gradtune
