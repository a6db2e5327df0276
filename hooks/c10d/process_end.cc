// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
#include "hooks/c10d/process_end.h"

#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <fstream>
#include <thread>

namespace gradtune {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

// Identifies the space in which process numbers are unique: a boot of a machine, and a process namespace in it.
std::string numbers_space() {
  std::string boot;
  std::ifstream("/proc/sys/kernel/random/boot_id") >> boot;
  std::array<char, 64> space{};
  const ssize_t length = readlink("/proc/self/ns/pid", space.data(), space.size());
  if (boot.empty() || length <= 0) return "";
  return boot + "/" + std::string(space.data(), static_cast<size_t>(length)) + "/";
}

// True if the process has ended and its parent has not yet waited for it.
bool is_zombie(pid_t pid) {
  std::ifstream file("/proc/" + std::to_string(pid) + "/stat");
  std::string line;
  std::getline(file, line);
  const size_t name_end = line.rfind(')');  // a name may contain any character
  return name_end != std::string::npos && line.compare(name_end, 3, ") Z") == 0;
}

}  // namespace

std::string process_name() {
  const std::string space = numbers_space();
  return space.empty() ? "" : space + std::to_string(getpid());
}

void await_end_of_process(const std::string& name, milliseconds most) {
  const std::string space = numbers_space();
  if (space.empty() || !name.starts_with(space)) return;
  pid_t pid = 0;
  const char* const end = name.data() + name.size();
  const auto parsed = std::from_chars(name.data() + space.size(), end, pid);
  if (parsed.ec != std::errc() || parsed.ptr != end || pid <= 0 || pid == getpid()) return;
  constexpr milliseconds kPoll{10}, kUnasked{1000};
  const auto deadline = Clock::now() + most;
  auto ends_by = deadline;
  while (Clock::now() < ends_by && !(kill(pid, 0) != 0 && errno == ESRCH)) {
    if (ends_by == deadline && is_zombie(pid)) ends_by = std::min(deadline, Clock::now() + kUnasked);
    std::this_thread::sleep_for(kPoll);
  }
}

}  // namespace gradtune
