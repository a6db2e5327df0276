// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
#include "tests/hooks/ranks.h"
#include "tests/temp_folder.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <poll.h>
#include <spawn.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <cstddef>
#include <cstdlib>
#include <cstring>
#include <stdexcept>
#include <thread>
#include <utility>

extern char** environ;

namespace gradtune::test {
namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) { return std::chrono::duration<double>(Clock::now() - start).count(); }

// A port for the store of one job, which no other test job on this machine gets while this object lives. Rank 0
// takes seconds until it listens, so a name with that number is taken in the abstract namespace of Unix sockets. The
// system does not assign such ports by itself (its own begin at 32768), as it does for Gloo's ports of other jobs.
class StorePort {
 public:
  StorePort() {
    constexpr int kFirst = 20'000, kPorts = 12'000;
    for (int attempt = 0; attempt < kPorts; ++attempt) {
      number_ = kFirst + (getpid() * 97 + attempt * 13) % kPorts;
      if (reserve() && is_free()) return;
      close(reservation_);
    }
    throw std::runtime_error("no port is free for a test");
  }
  ~StorePort() { close(reservation_); }
  StorePort(const StorePort&) = delete;
  StorePort& operator=(const StorePort&) = delete;

  int number() const { return number_; }

 private:
  bool reserve() {
    reservation_ = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    const std::string name = "gradtune-test-port-" + std::to_string(number_);
    name.copy(address.sun_path + 1, name.size());
    const auto length = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + name.size());
    return bind(reservation_, reinterpret_cast<sockaddr*>(&address), length) == 0;
  }
  bool is_free() const {
    const int fd = socket(AF_INET, SOCK_STREAM, 0);
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    address.sin_port = htons(static_cast<uint16_t>(number_));
    const bool bound = bind(fd, reinterpret_cast<sockaddr*>(&address), sizeof address) == 0;
    close(fd);
    return bound;
  }

  int number_ = 0, reservation_ = -1;
};

struct Child {
  pid_t pid = 0;
  int output = -1;
  bool ended = false;
  RankEnd end;
};

Child spawn(int rank, int size, int port, const RankOptions& options) {
  std::map<std::string, std::string> variables;
  for (char** variable = environ; *variable != nullptr; ++variable) {
    const std::string text(*variable);
    variables[text.substr(0, text.find('='))] = text.substr(text.find('=') + 1);
  }
  variables["RANK"] = std::to_string(rank);
  variables["WORLD_SIZE"] = std::to_string(size);
  variables["LOCAL_WORLD_SIZE"] = std::to_string(size);
  variables["MASTER_ADDR"] = "127.0.0.1";
  variables["MASTER_PORT"] = std::to_string(port);
  variables["GLOO_SOCKET_IFNAME"] = "lo";
  variables["OMP_NUM_THREADS"] = "1";
  // c10d looks up the name of each address that it connects to, and a silent name server costs 10 s each time.
  variables["RES_OPTIONS"] = "timeout:1 attempts:1";
  variables["RANKS_TEST_COPY"] = options.phase;
  for (const auto& [name, value] : options.environment) variables[name] = value;
  std::vector<std::string> lines;
  for (const auto& [name, value] : variables) lines.push_back(name + "=" + value);
  std::vector<char*> environment;
  for (std::string& line : lines) environment.push_back(line.data());
  environment.push_back(nullptr);

  const auto* info = testing::UnitTest::GetInstance()->current_test_info();
  std::string filter = std::string("--gtest_filter=") + info->test_suite_name() + "." + info->name();
  std::string program = "/proc/self/exe";
  char* arguments[] = {program.data(), filter.data(), nullptr};

  int pipe_ends[2];
  EXPECT_EQ(pipe2(pipe_ends, O_CLOEXEC), 0);
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_adddup2(&actions, pipe_ends[1], STDOUT_FILENO);
  posix_spawn_file_actions_adddup2(&actions, pipe_ends[1], STDERR_FILENO);
  Child child;
  EXPECT_EQ(posix_spawn(&child.pid, program.c_str(), &actions, nullptr, arguments, environment.data()), 0);
  posix_spawn_file_actions_destroy(&actions);
  close(pipe_ends[1]);
  fcntl(pipe_ends[0], F_SETFL, O_NONBLOCK);
  child.output = pipe_ends[0];
  return child;
}

void read_output(Child& child) {
  char buffer[4096];
  for (ssize_t got = 0; (got = read(child.output, buffer, sizeof buffer)) > 0;) {
    child.end.output.append(buffer, static_cast<size_t>(got));
  }
}

// A copy runs the first body of its phase, so a later call with another one would run nothing of it. A plain function
// that is the same in all calls is safe.
void check_is_only_body(const std::string& phase, const std::function<void(const Rank&)>& body) {
  static const testing::TestInfo* test = nullptr;
  static std::map<std::string, std::function<void(const Rank&)>> bodies;
  const testing::TestInfo* now = testing::UnitTest::GetInstance()->current_test_info();
  if (std::exchange(test, now) != now) bodies.clear();
  const auto [first, is_new] = bodies.try_emplace(phase, body);
  if (is_new) return;
  using Function = void (*)(const Rank&);
  const Function* const before = first->second.target<Function>();
  const Function* const again = body.target<Function>();
  EXPECT_TRUE(before != nullptr && again != nullptr && *before == *again)
      << "ranks are started again with a body that no copy would run; name a phase, or pass a plain function";
}

}  // namespace

bool is_rank() { return std::getenv("RANKS_TEST_COPY") != nullptr; }

bool is_of_another_phase(const std::string& phase) { return is_rank() && phase != std::getenv("RANKS_TEST_COPY"); }

std::vector<RankEnd> start_ranks(int size, const std::function<void(const Rank&)>& body, const RankOptions& options) {
  if (is_rank()) {
    body({std::atoi(std::getenv("RANK")), std::atoi(std::getenv("WORLD_SIZE"))});
    std::exit(testing::Test::HasFailure() ? 1 : 0);
  }
  check_is_only_body(options.phase, body);
  const TempFolder folder;
  const StorePort port;
  const auto start = Clock::now();
  std::vector<Child> children;
  for (int rank = 0; rank < size; ++rank) children.push_back(spawn(rank, size, port.number(), options));
  auto kill_clock = start;
  bool kill_armed = options.kill_rank && options.kill_after_line.empty();
  bool killed = false;
  for (int open = size; open > 0;) {
    for (Child& child : children) {
      if (child.ended) continue;
      read_output(child);
      int status = 0;
      if (waitpid(child.pid, &status, WNOHANG) == child.pid) {
        read_output(child);
        close(child.output);
        child.ended = true;
        child.end.exit_code = WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
        child.end.seconds = seconds_since(killed ? kill_clock : start);
        --open;
      } else if (seconds_since(start) > kSlowness * options.time_limit_s) {
        child.end.in_time = false;
        kill(child.pid, SIGKILL);
      }
    }
    if (options.kill_rank) {
      Child& victim = children[static_cast<size_t>(*options.kill_rank)];
      for (const Child& child : children) {
        if (kill_armed || child.end.output.find(options.kill_after_line) == std::string::npos) continue;
        kill_armed = true;
        kill_clock = Clock::now();
      }
      if (kill_armed && !killed && !victim.ended && seconds_since(kill_clock) >= options.kill_after_s) {
        kill(victim.pid, options.kill_signal);
        killed = true;
        kill_clock = Clock::now();
      }
      if (killed && open == 1 && !victim.ended) kill(victim.pid, SIGKILL);  // a frozen process does not end otherwise
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  std::vector<RankEnd> ends;
  for (Child& child : children) {
    // Tests that look at a part of the output alone would overlook it.
    EXPECT_EQ(child.end.output.find("Sanitizer: "), std::string::npos) << "a sanitizer reports:\n" << child.end.output;
    ends.push_back(std::move(child.end));
  }
  return ends;
}

void run_ranks(int size, const std::function<void(const Rank&)>& body, const RankOptions& options) {
  if (is_of_another_phase(options.phase)) return;
  const auto ends = start_ranks(size, body, options);
  for (int rank = 0; rank < size; ++rank) {
    const RankEnd& end = ends[static_cast<size_t>(rank)];
    EXPECT_TRUE(end.in_time) << "rank " << rank << " did not end in time:\n" << end.output;
    EXPECT_EQ(end.exit_code, 0) << "rank " << rank << ":\n" << end.output;
  }
}

}  // namespace gradtune::test
