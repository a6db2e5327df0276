// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// Tests that need several ranks start as many processes, on loopback, with real Gloo between them.
//
//   TEST(Wrap, AveragesGradients) {
//     run_ranks(2, [](const Rank& rank) { ... EXPECT_EQ(...); });
//   }
//
// In the process that ctest started, run_ranks starts N copies of this program with a filter for this one test and
// waits for them. A copy runs the body and exits, with 1 if expectations failed; then its output becomes part of the
// message. Copies share a TempFolder: that of the test, or else one that run_ranks makes.
//
// A test that starts ranks with several bodies names a phase for each, since a copy runs the first one of its phase. A
// call in a loop may pass a plain function instead, as in run_ranks(size, +[](const Rank& rank) { ... }).
#pragma once

#include <gtest/gtest.h>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>

#include <csignal>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

namespace gradtune::test {

#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
constexpr bool kSanitizing = true;
#else
constexpr bool kSanitizing = false;
#endif

// Factor for a test's limits, the same as for ctest's own limits (tests/CMakeLists.txt).
constexpr int kSlowness = kSanitizing ? 4 : 1;

struct Rank {
  int rank = 0;
  int size = 1;
};

// The end of a copy.
struct RankEnd {
  int exit_code = 0;  // 128 + signal if it was killed
  bool in_time = true;
  double seconds = 0;  // from the moment of `kill`, or from the start
  std::string output;  // standard output and error together
};

struct RankOptions {
  std::string phase = {};     // of the test, where it starts ranks with several bodies
  double time_limit_s = 100;  // multiplied by kSlowness
  std::map<std::string, std::string> environment = {};
  // Kills this rank this long after any rank printed `kill_after_line` (or after the start): SIGKILL ends it, SIGSTOP
  // freezes it until all others have ended.
  std::optional<int> kill_rank = {};
  int kill_signal = SIGKILL;
  double kill_after_s = 0;
  std::string kill_after_line = {};
};

// Tells if this process is such a copy.
bool is_rank();

// Tells if this process is a copy that was started for another phase, and should start no ranks for this one.
bool is_of_another_phase(const std::string& phase);

// Every copy must succeed. Does nothing in a copy of another phase.
void run_ranks(int size, const std::function<void(const Rank&)>& body, const RankOptions& options = {});

// For tests of failures: returns the end of each copy, for the parent to judge.
std::vector<RankEnd> start_ranks(int size, const std::function<void(const Rank&)>& body,
                                 const RankOptions& options = {});

}  // namespace gradtune::test
