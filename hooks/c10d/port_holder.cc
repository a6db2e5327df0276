// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
#include "hooks/c10d/port_holder.h"

#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <set>
#include <sstream>

namespace gradtune {
namespace {

namespace fs = std::filesystem;

// The names, as links in /proc/PID/fd give them, of the sockets that listen at the port.
std::set<std::string> sockets_at(uint16_t port) {
  std::set<std::string> sockets;
  for (const char* table : {"/proc/self/net/tcp", "/proc/self/net/tcp6"}) {
    std::ifstream lines(table);
    std::string line;
    std::getline(lines, line);  // skips the header line
    while (std::getline(lines, line)) {
      std::istringstream columns(line);
      std::string number, local, remote, state, queues, timer, retransmits, user, timeout, inode;
      columns >> number >> local >> remote >> state >> queues >> timer >> retransmits >> user >> timeout >> inode;
      const size_t colon = local.rfind(':');
      const std::string kListens = "0A";
      if (colon == std::string::npos || state != kListens) continue;
      if (std::strtoul(local.c_str() + colon + 1, nullptr, 16) == port) sockets.insert("socket:[" + inode + "]");
    }
  }
  return sockets;
}

bool has_one_of(const fs::path& process, const std::set<std::string>& sockets) {
  std::error_code denied;
  for (fs::directory_iterator file(process / "fd", denied), end; !denied && file != end; file.increment(denied)) {
    std::error_code closed;
    if (sockets.contains(fs::read_symlink(file->path(), closed).string())) return true;
  }
  return false;
}

std::string program_of(const fs::path& process) {
  std::error_code denied;
  return fs::read_symlink(process / "exe", denied).filename().string();
}

}  // namespace

std::optional<PortHolder> port_holder(uint16_t port) {
  const std::set<std::string> sockets = sockets_at(port);
  if (sockets.empty()) return std::nullopt;
  if (has_one_of("/proc/self", sockets)) {
    return PortHolder{.pid = getpid(), .is_this_process = true, .name = program_of("/proc/self")};
  }
  std::error_code failed;
  for (fs::directory_iterator entry("/proc", failed), end; !failed && entry != end; entry.increment(failed)) {
    const std::string name = entry->path().filename();
    if (name.find_first_not_of("0123456789") != std::string::npos || !has_one_of(entry->path(), sockets)) continue;
    return PortHolder{.pid = std::stoi(name), .is_this_process = false, .name = program_of(entry->path())};
  }
  return std::nullopt;
}

}  // namespace gradtune
