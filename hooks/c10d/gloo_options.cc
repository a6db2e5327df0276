// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
#include "hooks/c10d/gloo_options.h"

#include <arpa/inet.h>
#include <gloo/transport/device.h>
#include <ifaddrs.h>
#include <netinet/in.h>
#include <sched.h>

#include <algorithm>
#include <array>
#include <sstream>
#include <vector>

#include "hooks/c10d/torch_versions.h"

namespace gradtune {
namespace {

constexpr const char* kInterfaceVariable = "GLOO_SOCKET_IFNAME";

struct Interface {
  std::string name, address;
};

std::string text_of(const sockaddr& address) {
  std::array<char, INET6_ADDRSTRLEN> text{};
  const void* bytes = address.sa_family == AF_INET
                          ? static_cast<const void*>(&reinterpret_cast<const sockaddr_in&>(address).sin_addr)
                          : &reinterpret_cast<const sockaddr_in6&>(address).sin6_addr;
  const char* written = inet_ntop(address.sa_family, bytes, text.data(), text.size());
  return written == nullptr ? "" : written;
}

// The interfaces that Gloo can use: those with an IPv4 or IPv6 address.
std::vector<Interface> interfaces() {
  std::vector<Interface> found;
  ifaddrs* first = nullptr;
  if (getifaddrs(&first) != 0) return found;
  for (const ifaddrs* entry = first; entry != nullptr; entry = entry->ifa_next) {
    if (entry->ifa_addr == nullptr) continue;
    const int family = entry->ifa_addr->sa_family;
    if (family == AF_INET || family == AF_INET6) found.push_back({entry->ifa_name, text_of(*entry->ifa_addr)});
  }
  freeifaddrs(first);
  return found;
}

std::string list(const std::vector<Interface>& all) {
  std::string text;
  for (const Interface& one : all) text += (text.empty() ? "" : ", ") + one.name + " (" + one.address + ")";
  return text.empty() ? "none" : text;
}

// While this object lives, threads that are started inherit the policy SCHED_BATCH. A policy that was chosen for
// this process is kept. If the system refuses the change, the usual policy stays and messages are merely slower.
class BatchPolicy {
 public:
  BatchPolicy() : is_set_(sched_getscheduler(0) == SCHED_OTHER && set(SCHED_BATCH)) {}
  ~BatchPolicy() {
    if (is_set_) set(SCHED_OTHER);
  }
  BatchPolicy(const BatchPolicy&) = delete;
  BatchPolicy& operator=(const BatchPolicy&) = delete;

 private:
  static bool set(int policy) {
    const sched_param no_priority{};
    return sched_setscheduler(0, policy, &no_priority) == 0;
  }

  const bool is_set_;
};

}  // namespace

c10::intrusive_ptr<GlooOptions> make_gloo_options(std::chrono::milliseconds timeout) {
  check_interfaces(environment_variable).value();
  const BatchPolicy policy;
  return versions::default_gloo_options(timeout);
}

core::Status check_interfaces(const Environment& environment) {
  const auto names = environment(kInterfaceVariable);
  if (!names) return {};
  const std::vector<Interface> all = interfaces();
  std::stringstream words(*names);
  for (std::string name; std::getline(words, name, ',');) {
    if (std::ranges::find(all, name, &Interface::name) != all.end()) continue;
    std::ostringstream text;
    text << kInterfaceVariable << " is \"" << *names << "\", but no interface here is called \"" << name
         << "\" and has an address; allowed are names, separated by commas, of " << list(all);
    return core::Error{core::Error::Code::invalid, text.str()};
  }
  return {};
}

std::string offered_address(const GlooOptions& options) {
  std::string all;
  for (const auto& device : options.devices) {
    const std::string text = device->str();  // "tcp, ..., addr=[198.18.0.1]:1234"
    const std::string mark = "addr=[";
    const size_t begin = text.find(mark);
    if (begin == std::string::npos) continue;
    const size_t at = begin + mark.size();
    all += (all.empty() ? "" : ",") + text.substr(at, text.find(']', at) - at);
  }
  return all;
}

std::string offered_address() { return offered_address(*make_gloo_options(std::chrono::seconds(1))); }

bool is_loopback(const std::string& address) {
  return address.starts_with("127.") || address == "::1" || address == "localhost";
}

namespace {

// The first few names, for an error message.
std::string offers(const std::vector<std::string>& offered) {
  constexpr size_t kMost = 8;
  std::ostringstream text;
  for (size_t r = 0; r < std::min(kMost, offered.size()); ++r) {
    text << (r > 0 ? ", rank " : "rank ") << r << (offered[r].empty() ? " none yet" : " " + offered[r]);
  }
  if (offered.size() > kMost) text << ", ...";
  return text.str();
}

}  // namespace

std::string why_unreachable(const std::vector<std::string>& offered, int own_rank, const Environment& environment) {
  const auto master = environment("MASTER_ADDR");
  if (!master || is_loopback(*master)) return "";  // all ranks are on this machine
  std::ostringstream why;
  bool any = false;
  for (size_t r = 0; r < offered.size(); ++r) {
    if (!is_loopback(offered[r])) continue;
    why << (any ? ", " : "") << "rank " << r << " offered " << offered[r];
    any = true;
  }
  if (!any) {
    const bool all_alike = std::ranges::count(offered, offered[0]) == std::ssize(offered);
    return all_alike ? "" : "offered to each other were: " + offers(offered) + " (" + kInterfaceVariable + " chooses)";
  }
  why << ", which is a loopback address that other machines can not reach, though MASTER_ADDR is " << *master
      << ": set " << kInterfaceVariable << " there to the interface that leads to the other ranks";
  if (!is_loopback(offered[static_cast<size_t>(own_rank)])) return why.str();
  const auto chosen = environment(kInterfaceVariable);
  if (chosen) {
    why << " (here it is \"" << *chosen << '"';
  } else {
    why << " (here it is not set, and the host's name resolves to that address";
  }
  why << "; there are " << list(interfaces()) << ')';
  return why.str();
}

}  // namespace gradtune
