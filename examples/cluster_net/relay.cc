// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// A switch in user space that forwards every frame some time after it arrived: the delay of examples/cluster.
//
//   cluster_relay DELAY_NS LONGEST_NS SLOTS SLOT_BYTES INTERFACE...
//
// Frames wait where the kernel put them. Each interface has a packet socket with a ring of slots in shared memory,
// one slot for each frame, so the ring bounds the queue. The kernel's time of arrival counts, not the time at which
// this process sees the frame. Frames leave in the order of their arrival, so a frame that arrives during a wait is not
// due before its end, and one wake-up per frame is enough. A piece that TCP hands to its interface (segmentation
// offload) stays in one piece: a few thousand frames per second make 1 Gbit/s.
//
// Frames wait for DELAY_NS at first. After a line "wander" on standard input the wait changes every 50 ms, to a value
// between DELAY_NS and LONGEST_NS.
//
// Prints "ready" when it works, then one line of JSON (Relay::tell) for each other line on standard input. It ends at
// the end of standard input. It needs CAP_NET_RAW in its network namespace.

#include <arpa/inet.h>
#include <linux/if_packet.h>
#include <net/ethernet.h>
#include <net/if.h>
#include <poll.h>
#include <sched.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <deque>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace {

constexpr int64_t kNsPerS = 1'000'000'000;
constexpr int64_t kWanderNs = 50'000'000;
constexpr size_t kBacklogBytes = 64 << 20;  // the capacity of a token bucket's queue (QUEUE_LIMIT_BYTES in network.py)
constexpr size_t kOffloadBytes = 10;        // struct virtio_net_hdr before each frame, which describes its segmentation

using Address = std::array<uint8_t, ETH_ALEN>;

[[noreturn]] void fail(const std::string& what) {
  std::fprintf(stderr, "cluster_relay: %s: %s\n", what.c_str(), std::strerror(errno));
  std::exit(1);
}

int64_t now_ns(clockid_t clock) {
  timespec time{};
  clock_gettime(clock, &time);
  return time.tv_sec * kNsPerS + time.tv_nsec;
}

// One interface: the frames that arrived on it, oldest first, and those that it does not take yet.
class Port {
 public:
  Port(const std::string& interface, unsigned slots, unsigned slot_bytes)
      : name_(interface), slot_bytes_(slot_bytes), ring_bytes_(size_t{slots} * slot_bytes) {
    socket_ = ::socket(AF_PACKET, SOCK_RAW | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (socket_ < 0) {
      fail("no packet socket");
    }
    set(PACKET_VERSION, static_cast<int>(TPACKET_V2));
    set(PACKET_VNET_HDR, 1);
    set(PACKET_IGNORE_OUTGOING, 1);
    set(PACKET_RX_RING,
        tpacket_req{
            .tp_block_size = slot_bytes, .tp_block_nr = slots, .tp_frame_size = slot_bytes, .tp_frame_nr = slots});
    void* ring = mmap(nullptr, ring_bytes_, PROT_READ | PROT_WRITE, MAP_SHARED, socket_, 0);
    if (ring == MAP_FAILED) {
      fail("no ring for " + name_);
    }
    ring_ = static_cast<char*>(ring);
    sockaddr_ll address{};
    address.sll_family = AF_PACKET;
    address.sll_protocol = htons(ETH_P_ALL);
    address.sll_ifindex = static_cast<int>(if_nametoindex(interface.c_str()));
    if (address.sll_ifindex == 0 || bind(socket_, reinterpret_cast<sockaddr*>(&address), sizeof address) != 0) {
      fail(name_);
    }
  }
  Port(const Port&) = delete;  // the process ends with its ports
  Port& operator=(const Port&) = delete;

  [[nodiscard]] int socket() const { return socket_; }
  [[nodiscard]] bool blocked() const { return !backlog_.empty(); }

  // The arrival time of the oldest frame (CLOCK_REALTIME).
  [[nodiscard]] std::optional<int64_t> arrival_ns() const {
    if ((std::atomic_ref(oldest().tp_status).load(std::memory_order_acquire) & TP_STATUS_USER) == 0) {
      return std::nullopt;
    }
    return oldest().tp_sec * kNsPerS + oldest().tp_nsec;
  }

  // The oldest frame, preceded by its offload header.
  [[nodiscard]] std::span<const char> frame() const {
    return {ring_ + position_ + oldest().tp_mac - kOffloadBytes, oldest().tp_snaplen + kOffloadBytes};
  }

  [[nodiscard]] bool truncated() const { return oldest().tp_snaplen < oldest().tp_len; }

  void pop() {
    std::atomic_ref(oldest().tp_status).store(TP_STATUS_KERNEL, std::memory_order_release);
    position_ = (position_ + slot_bytes_) % ring_bytes_;
  }

  void drop() { ++dropped_; }

  [[noreturn]] void fail_with_its_error() {
    socklen_t size = sizeof errno;
    getsockopt(socket_, SOL_SOCKET, SO_ERROR, &errno, &size);
    fail(name_);
  }

  // If a shaped interface takes no more for now, frames wait here, so that those to other interfaces need not wait.
  void send(std::span<const char> frame) {
    if (!blocked() && try_send(frame)) {
      return;
    }
    if (backlog_bytes_ + frame.size() > kBacklogBytes) {
      drop();
      return;
    }
    backlog_.emplace_back(frame.begin(), frame.end());
    backlog_bytes_ += frame.size();
  }

  void send_backlog() {
    while (blocked() && try_send(backlog_.front())) {
      backlog_bytes_ -= backlog_.front().size();
      backlog_.pop_front();
    }
  }

  // Frames lost so far: no slot was free on arrival, or the interface refused it.
  [[nodiscard]] uint64_t dropped() {
    tpacket_stats since_last{};
    socklen_t size = sizeof since_last;
    if (getsockopt(socket_, SOL_PACKET, PACKET_STATISTICS, &since_last, &size) == 0) {
      dropped_ += since_last.tp_drops;
    }
    return dropped_;
  }

 private:
  template <typename Value>
  void set(int option, const Value& value) {
    if (setsockopt(socket_, SOL_PACKET, option, &value, sizeof value) != 0) {
      fail("packet socket option " + std::to_string(option) + " for " + name_);
    }
  }

  [[nodiscard]] tpacket2_hdr& oldest() const { return *reinterpret_cast<tpacket2_hdr*>(ring_ + position_); }

  // False if the interface takes no more at present.
  bool try_send(std::span<const char> frame) {
    if (::send(socket_, frame.data(), frame.size(), 0) < 0) {
      if (errno == EAGAIN) {
        return false;
      }
      drop();
    }
    return true;
  }

  std::string name_;
  size_t slot_bytes_;
  size_t ring_bytes_;
  int socket_ = -1;
  char* ring_ = nullptr;
  size_t position_ = 0;  // of the oldest frame's slot
  std::deque<std::vector<char>> backlog_;
  size_t backlog_bytes_ = 0;
  uint64_t dropped_ = 0;
};

class Relay {
 public:
  Relay(int64_t delay_ns, int64_t longest_ns, std::deque<Port>& ports)
      : delay_ns_(delay_ns), longest_ns_(longest_ns), ports_(ports) {}

  // Runs until the end of standard input.
  void run() {
    std::vector<pollfd> waits;
    char questions[256];
    while (true) {
      const std::optional<int64_t> wait_ns = forward_due();
      waits.assign(1, {STDIN_FILENO, POLLIN, 0});
      for (const Port& port : ports_) {
        const int arrivals = wait_ns ? 0 : POLLIN;  // while a frame waits, no other can be due earlier
        waits.push_back({port.socket(), static_cast<int16_t>(arrivals | (port.blocked() ? POLLOUT : 0)), 0});
      }
      const timespec time{wait_ns.value_or(0) / kNsPerS, wait_ns.value_or(0) % kNsPerS};
      if (ppoll(waits.data(), waits.size(), wait_ns ? &time : nullptr, nullptr) < 0 && errno != EINTR) {
        fail("ppoll");
      }
      for (size_t i = 0; i < ports_.size(); ++i) {
        ports_[i].send_backlog();
        if ((waits[i + 1].revents & POLLERR) != 0) {
          ports_[i].fail_with_its_error();
        }
      }
      if (waits[0].revents != 0) {
        const ssize_t count = read(STDIN_FILENO, questions, sizeof questions);
        if (count <= 0) {
          return;
        }
        for (const char letter : std::span(questions, static_cast<size_t>(count))) {
          hear(letter);
        }
      }
    }
  }

 private:
  // A line with a word begins to wander, an empty one asks for the counts.
  void hear(char letter) {
    if (letter != '\n') {
      wanders_ = has_word_ = true;
    } else if (!std::exchange(has_word_, false)) {
      tell();
    }
  }

  // The time that a frame waits that arrived then.
  int64_t wait_ns(int64_t arrival_ns) const {
    if (!wanders_ || longest_ns_ <= delay_ns_) {
      return delay_ns_;
    }
    uint64_t drawn = static_cast<uint64_t>(arrival_ns / kWanderNs) * 0x9e3779b97f4a7c15U;  // splitmix64
    drawn = (drawn ^ (drawn >> 30)) * 0xbf58476d1ce4e5b9U;
    drawn = (drawn ^ (drawn >> 27)) * 0x94d049bb133111ebU;
    return delay_ns_ +
           static_cast<int64_t>((drawn ^ (drawn >> 31)) % static_cast<uint64_t>(longest_ns_ - delay_ns_ + 1));
  }

  // Forwards the frames that have waited long enough. Returns the nanoseconds until the next frame is due, if there
  // is one.
  std::optional<int64_t> forward_due() {
    while (true) {
      Port* first = nullptr;
      int64_t arrival_ns = 0;
      for (Port& port : ports_) {
        const std::optional<int64_t> candidate_ns = port.arrival_ns();
        if (candidate_ns && (first == nullptr || *candidate_ns < arrival_ns)) {
          first = &port;
          arrival_ns = *candidate_ns;
        }
      }
      if (first == nullptr) {
        return std::nullopt;
      }
      const int64_t due_ns = std::max(arrival_ns + wait_ns(arrival_ns), last_due_ns_);
      const int64_t late_ns = now_ns(CLOCK_REALTIME) - due_ns;
      if (late_ns < 0) {
        return std::min(-late_ns, std::max(delay_ns_, longest_ns_));
      }
      last_due_ns_ = due_ns;
      forward_oldest_of(*first);
      ++frames_;
      total_late_ns_ += late_ns;
      max_late_ns_ = std::max(max_late_ns_, late_ns);
    }
  }

  // Forwards to the interface behind which the destination was seen, or to all others.
  void forward_oldest_of(Port& from) {
    const std::span<const char> frame = from.frame();
    Address to{}, source{};
    std::memcpy(to.data(), frame.data() + kOffloadBytes, to.size());
    std::memcpy(source.data(), frame.data() + kOffloadBytes + to.size(), source.size());
    if (from.truncated()) {
      from.drop();
    } else {
      port_of_[source] = &from;
      const auto known = port_of_.find(to);
      for (Port& port : ports_) {
        if (&port != &from && (known == port_of_.end() || known->second == &port)) {
          port.send(frame);
        }
      }
    }
    from.pop();
  }

  // Reports the counts since the last report; drops are counted from the start.
  void tell() {
    const int64_t cpu_ns = now_ns(CLOCK_PROCESS_CPUTIME_ID);
    const double mean_late_ns = frames_ == 0 ? 0.0 : static_cast<double>(total_late_ns_) / static_cast<double>(frames_);
    std::printf(R"({"frames": %llu, "mean_late_s": %.9f, "max_late_s": %.9f, "cpu_s": %.6f, "dropped": [)",
                static_cast<unsigned long long>(frames_), mean_late_ns / kNsPerS,
                static_cast<double>(max_late_ns_) / kNsPerS, static_cast<double>(cpu_ns - told_cpu_ns_) / kNsPerS);
    for (Port& port : ports_) {
      std::printf("%s%llu", &port == &ports_.front() ? "" : ", ", static_cast<unsigned long long>(port.dropped()));
    }
    std::printf("]}\n");
    std::fflush(stdout);
    frames_ = 0;
    total_late_ns_ = max_late_ns_ = 0;
    told_cpu_ns_ = cpu_ns;
  }

  int64_t delay_ns_, longest_ns_;
  bool wanders_ = false;
  bool has_word_ = false;  // in the line that is being read
  int64_t last_due_ns_ = 0;
  std::deque<Port>& ports_;
  std::map<Address, Port*> port_of_;  // by a node's address
  uint64_t frames_ = 0;
  int64_t total_late_ns_ = 0;
  int64_t max_late_ns_ = 0;
  int64_t told_cpu_ns_ = 0;
};

// Late frames falsify the delay, and ranks keep all cores busy. Without the privilege it still works, with more
// jitter.
void ask_for_priority() {
  prctl(PR_SET_TIMERSLACK, 1UL, 0UL, 0UL, 0UL);
  const sched_param first{.sched_priority = 1};
  sched_setscheduler(0, SCHED_RR, &first);
}

}  // namespace

int main(int argc, char** argv) {
  const int64_t delay_ns = argc > 5 ? std::atoll(argv[1]) : 0;
  const int64_t longest_ns = argc > 5 ? std::atoll(argv[2]) : 0;
  const int slots = argc > 5 ? std::atoi(argv[3]) : 0;
  const int slot_bytes = argc > 5 ? std::atoi(argv[4]) : 0;
  if (delay_ns <= 0 || longest_ns < delay_ns || slots <= 0 || slot_bytes <= 0) {
    std::fputs(
        "usage: cluster_relay DELAY_NS LONGEST_NS SLOTS SLOT_BYTES INTERFACE...   (examples/cluster --delay calls "
        "it)\n",
        stderr);
    return 2;
  }
  ask_for_priority();
  std::deque<Port> ports;
  for (int i = 5; i < argc; ++i) {
    ports.emplace_back(argv[i], static_cast<unsigned>(slots), static_cast<unsigned>(slot_bytes));
  }
  std::puts("ready");
  std::fflush(stdout);
  Relay(delay_ns, longest_ns, ports).run();
}
