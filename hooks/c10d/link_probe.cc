// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
#include "hooks/c10d/link_probe.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstring>
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

  // Replaces each number by its mean over ranks, which is the same on all of them. This probe has their bytes.
  void average(std::span<double> numbers) {
    core::check(bytes_ == static_cast<int64_t>(numbers.size_bytes()), "the numbers fit");
    put(numbers);
    us_of(1);
    const std::vector<double> of_ranks = gathered();
    const double share = 1.0 / link_.communicator.size();
    std::ranges::fill(numbers, 0);
    for (size_t i = 0; i < of_ranks.size(); ++i) numbers[i % numbers.size()] += share * of_ranks[i];
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

  void put(std::span<const double> numbers) {
    if (link_.device == nullptr) {
      std::memcpy(in_.data(), numbers.data(), numbers.size_bytes());
    } else {
      copy(in_.data(), numbers.data(), bytes_, Way::to_device);
    }
  }

  std::vector<double> gathered() const {
    std::vector<double> numbers(static_cast<size_t>(all_bytes_) / sizeof(double));
    if (link_.device == nullptr) {
      std::memcpy(numbers.data(), out_.data(), static_cast<size_t>(all_bytes_));
    } else {
      copy(numbers.data(), out_.data(), all_bytes_, Way::to_host);
    }
    return numbers;
  }

  enum class Way : uint8_t { to_device, to_host };
  void copy(void* to, const void* from, int64_t bytes, Way way) const {
    exec::AlignedBytes on_host = exec::AlignedBytes::zeros(bytes, &link_.device->pinned());
    compress::Queue& queue = link_.device->queue(exec::Device::Stream::collectives);
    if (way == Way::to_device) std::memcpy(on_host.data(), from, static_cast<size_t>(bytes));
    way == Way::to_device ? queue.copy(to, on_host.data(), bytes) : queue.copy(on_host.data(), from, bytes);
    const core::Status copied = queue.mark().wait(link_.timeout_ms);
    if (!copied) on_host.abandon();  // a late copy may still use it
    check(copied);
    if (way == Way::to_host) std::memcpy(to, on_host.data(), static_cast<size_t>(bytes));
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

// The usual time. Ranks do not begin at the same time: one that is early by less than the delay waits longer by that
// much, and its peer shorter. So each time is the mean over ranks, and is long where one is much later.
double usual_of_ranks(const ProbedLink& link, std::span<double> us) {
  Probe(link, static_cast<int64_t>(us.size_bytes()), 1).average(us);
  return usual(us);
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
  const double all_us = usual_of_ranks(link, one_us);
  const double busy_us = std::clamp((usual_of_ranks(link, several_us) - all_us) / (kAtOnce - 1), 0.0, all_us);
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
// sizes that a fast link needs would take seconds on a slow one. All ranks stop at the same size.
void probe_bytes(const ProbedLink& link, int64_t most_bytes, Probed& probed) {
  constexpr size_t kTimes = 3;
  constexpr int64_t kFirstBytes = 64 << 10, kMore = 4;
  constexpr double kClearly = 4, kLongUs = 20'000;
  constexpr double kLeastByteUs = 1e-6;  // on a busy machine an empty message may take longer: bytes are not free then
  const auto kind = core::Step::Kind::all_gather;
  const int size = link.communicator.size();
  const double messages_us = core::messages(kind, size) * probed.link.message_us;
  for (int64_t bytes = std::min(kFirstBytes, most_bytes / size);; bytes = std::min(kMore * bytes, most_bytes / size)) {
    Probe probe(link, bytes, 1);
    // The first runs touch the memory and open the connections' windows.
    for (int i = 0; i < 2; ++i) probe.us_of(1);
    std::array<double, kTimes> all_us{}, busy_us{};
    for (size_t i = 0; i < kTimes; ++i) {
      const double before_us = cpu_us();
      all_us[i] = probe.us_of(1);
      busy_us[i] = cpu_us() - before_us;
    }
    const double usual_us = usual_of_ranks(link, all_us);
    if (usual_us < kClearly * messages_us + kLongUs && bytes < most_bytes / size) continue;
    const double bytes_us = std::max(usual_us - messages_us, 0.0);
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
  link.communicator.expect_delay(probed.link.wait_us);
  if (most_bytes >= link.communicator.size()) probe_bytes(link, most_bytes, probed);
  return probed;
}

}  // namespace gradtune
