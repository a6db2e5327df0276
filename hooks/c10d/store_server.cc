// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
#include "hooks/c10d/store_server.h"

#include <netdb.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include <cerrno>
#include <memory>
#include <string>

namespace gradtune {
namespace {

bool accepts(const addrinfo& address, std::chrono::milliseconds limit) {
  const int fd = socket(address.ai_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
  if (fd < 0) return errno != EAFNOSUPPORT;  // unknown
  bool connected = connect(fd, address.ai_addr, address.ai_addrlen) == 0;
  if (!connected && errno == EINPROGRESS) {
    pollfd done{.fd = fd, .events = POLLOUT, .revents = 0};
    int error = -1;
    socklen_t length = sizeof error;
    connected = poll(&done, 1, static_cast<int>(limit.count())) == 1 &&
                getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &length) == 0 && error == 0;
  }
  close(fd);
  return connected;
}

// Null if there is none.
c10::intrusive_ptr<c10d::TCPStore> beneath(const c10::intrusive_ptr<c10d::Store>& store) {
  auto plain = store;
  if (const auto prefixed = c10::dynamic_intrusive_pointer_cast<c10d::PrefixStore>(plain)) {
    plain = prefixed->getUnderlyingNonPrefixStore();
  }
  return c10::dynamic_intrusive_pointer_cast<c10d::TCPStore>(plain);
}

}  // namespace

std::string address_of(const c10::intrusive_ptr<c10d::Store>& store) {
  const auto tcp = beneath(store);
  return tcp ? tcp->getHost() + ":" + std::to_string(tcp->getPort()) : std::string();
}

bool is_served(const c10::intrusive_ptr<c10d::Store>& store, std::chrono::milliseconds limit) {
  const auto tcp = beneath(store);
  if (!tcp) return true;
  addrinfo wanted{};
  wanted.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  if (getaddrinfo(tcp->getHost().c_str(), std::to_string(tcp->getPort()).c_str(), &wanted, &found) != 0) return true;
  const std::unique_ptr<addrinfo, decltype(&freeaddrinfo)> addresses(found, &freeaddrinfo);
  for (const addrinfo* address = found; address != nullptr; address = address->ai_next) {
    if (accepts(*address, limit)) return true;
  }
  return false;
}

}  // namespace gradtune
