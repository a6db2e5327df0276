// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// Tests a rank that dies, never comes, or leaves early. Every other rank ends within twice the time limit, with an
// error that names the reporting rank, the suspected one, and the step.
#include <gmock/gmock.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <thread>

#include "engine/core/rng.h"
#include "tests/hooks/jobs.h"
#include "tests/hooks/ranks.h"

namespace gradtune::test {
namespace {

using testing::AllOf;
using testing::AnyOf;
using testing::HasSubstr;

constexpr double kTimeoutS = 3;

int trials() {
  const char* text = std::getenv("KILL_TRIALS");
  return text == nullptr ? 5 : std::atoi(text);
}

// Trains until it is killed or fails; prints a line when it wraps, when it races and at each switch of the strategy.
void train_until_killed(const Rank& rank) {
  auto group = make_group();
  auto model = make_mlp(1, 512);
  torch::optim::SGD sgd(model->parameters(), 0.01);
  try {
    std::printf("wrapping\n");
    std::fflush(stdout);
    auto optimizer = wrap(sgd, *model, group,
                          quiet({.fidelity = "lossy",
                                 .compressors = {{"packed", "bf16", "bf16packed", "topk"}},
                                 .tuning_budget = 100000,
                                 .timeout = kTimeoutS,
                                 .tuning_share = 1.0}));
    int64_t epoch = 1;
    for (int64_t step = 0; step < 100000; ++step) {
      optimizer.zero_grad();
      loss_of(model, make_data(rank.rank, step % 16)).backward();
      optimizer.step();
      if (step == 8) std::printf("training\n");
      if (optimizer.progress().epoch != epoch)
        std::printf("switched %ld\n", static_cast<long>(epoch = optimizer.progress().epoch));
      if (optimizer.progress().stage == "race") std::printf("racing\n");
      std::fflush(stdout);
    }
    FAIL() << "the job came to its end";
  } catch (const std::exception& error) {
    std::printf("ERROR %s\n", error.what());
    std::fflush(stdout);
    _exit(7);
  }
}

// The victim is gone; every other rank ended in time, and named it.
void expect_named_errors(const std::vector<RankEnd>& ends, int victim, const std::string& when) {
  for (int rank = 0; rank < static_cast<int>(ends.size()); ++rank) {
    const RankEnd& end = ends[static_cast<size_t>(rank)];
    const std::string what = when + ", rank " + std::to_string(rank) + " of " + std::to_string(ends.size()) +
                             ", killed " + std::to_string(victim) + ":\n" +
                             end.output.substr(end.output.size() > 1500 ? end.output.size() - 1500 : 0);
    if (rank == victim) {
      EXPECT_EQ(end.exit_code, 128 + 9) << what;
      continue;
    }
    EXPECT_TRUE(end.in_time) << what;
    EXPECT_EQ(end.exit_code, 7) << what;
    EXPECT_LE(end.seconds, 2 * kSlowness * kTimeoutS) << what;
    const size_t at = end.output.find("ERROR ");
    ASSERT_NE(at, std::string::npos) << what;
    const std::string message = end.output.substr(at);
    const std::string me = "rank " + std::to_string(rank), who = "rank " + std::to_string(victim);
    // Before they have met there is no step, and the missing rank is known, not suspected.
    EXPECT_THAT(message, AnyOf(AllOf(HasSubstr(me + " at step "), HasSubstr("suspected: " + who)),
                               AllOf(HasSubstr(me + ": " + who), HasSubstr("did not come to \"wrap\"")),
                               AllOf(HasSubstr(me + ": the store does not answer at \"wrap\""))))
        << what;
  }
}

// Kills a random rank a random short time after its output held `line`.
void kill_and_expect_named_errors(const char* line, double most_delay_s,
                                  const std::map<std::string, std::string>& environment = {}) {
  core::Rng rng = core::Rng(7).fork(line);
  for (int trial = 0; trial < trials(); ++trial) {
    const int size = 2 + static_cast<int>(rng.below(2));
    const int victim = static_cast<int>(rng.below(static_cast<uint64_t>(size)));
    const auto ends = start_ranks(size, train_until_killed,
                                  {.time_limit_s = 60,
                                   .environment = environment,
                                   .kill_rank = victim,
                                   .kill_after_s = rng.uniform() * most_delay_s,
                                   .kill_after_line = line});
    expect_named_errors(ends, victim, std::string(line) + ", trial " + std::to_string(trial));
  }
}

// A process that stops but keeps its connections, as under a debugger, with a full swap, or on a lost host.
void freeze_and_expect_named_errors(int victim) {
  const auto ends =
      start_ranks(3, train_until_killed,
                  {.time_limit_s = 60, .kill_rank = victim, .kill_signal = SIGSTOP, .kill_after_line = "training"});
  expect_named_errors(ends, victim, "frozen");
}

uint16_t master_port() { return static_cast<uint16_t>(std::atoi(std::getenv("MASTER_PORT"))); }

// A socket that listens at MASTER_PORT; TCPStore's server may take it over when only its connections are left.
int listen_at_master_port() {
  const int fd = socket(AF_INET, SOCK_STREAM, 0);
  const int yes = 1;
  setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  address.sin_port = htons(master_port());
  EXPECT_EQ(bind(fd, reinterpret_cast<sockaddr*>(&address), sizeof address), 0);
  EXPECT_EQ(listen(fd, 5), 0);
  return fd;
}

TEST(Failure, RankKilledWhileWrapping) { kill_and_expect_named_errors("wrapping", 0.3); }
TEST(Failure, RankKilledWhileTraining) { kill_and_expect_named_errors("training", 0.2); }
TEST(Failure, RankKilledWhileSwitching) { kill_and_expect_named_errors("switched 3", 0.02); }
// On a slow link there is something to gain in a race.
TEST(Failure, RankKilledWhileRacing) { kill_and_expect_named_errors("racing", 0.2, {{"GRADTUNE_PACING_MBIT", "200"}}); }

TEST(Failure, RankThatNeverComesIsNamed) {
  const auto ends = start_ranks(2, [](const Rank& rank) {
    if (rank.rank == 1) return;
    try {
      init_process_group(/*timeout_s=*/1);
      FAIL() << "rank 1 did not come";
    } catch (const std::exception& error) {
      EXPECT_THAT(error.what(), testing::AllOf(HasSubstr("rank 0"), HasSubstr("rank 1 of 2 did not come")));
    }
  });
  EXPECT_EQ(ends[0].exit_code, 0) << ends[0].output;
}

TEST(Failure, RankFrozenWhileTraining) { freeze_and_expect_named_errors(1); }
TEST(Failure, RankWithTheStoreFrozenWhileTraining) { freeze_and_expect_named_errors(0); }

TEST(Failure, StoreThatNeverAnswersIsNamed) {
  const auto ends = start_ranks(2, [](const Rank& rank) {
    if (rank.rank == 0) {
      const int listener = listen_at_master_port();
      std::this_thread::sleep_for(std::chrono::seconds(8));
      close(listener);
      return;
    }
    const auto start = std::chrono::steady_clock::now();
    try {
      init_process_group(/*timeout_s=*/2);
      FAIL() << "nobody answered";
    } catch (const std::exception& error) {
      EXPECT_THAT(error.what(), testing::AllOf(HasSubstr("rank 1: no store at 127.0.0.1:"),
                                               HasSubstr("rank 0 should answer: it does not answer")));
    }
    EXPECT_LE(std::chrono::steady_clock::now() - start, std::chrono::seconds(kSlowness * 4));
  });
  for (const RankEnd& end : ends) EXPECT_EQ(end.exit_code, 0) << end.output;
}

// A client's connection may be accepted in the moment in which a server begins to listen, and then be lost.
TEST(Failure, ConnectionToTheStoreThatGotLostIsMadeAgain) {
  const auto ends = start_ranks(2, [](const Rank& rank) {
    int lost = -1;
    if (rank.rank == 0) {
      const int listener = listen_at_master_port();
      lost = accept(listener, nullptr, nullptr);
      EXPECT_GE(lost, 0);
      close(listener);
    }
    EXPECT_EQ(make_group(20)->getSize(), 2);
    close(lost);
  });
  for (const RankEnd& end : ends) EXPECT_EQ(end.exit_code, 0) << end.output;
}

// All had come, as far as this rank could see, but the store belonged to another job, which ended.
TEST(Failure, StoreThatGoesAfterTheRollCallIsAskedForAgain) {
  const auto ends = start_ranks(2, [](const Rank& rank) {
    if (rank.rank == 0) {
      c10d::TCPStoreOptions options;
      options.port = master_port();
      options.isServer = true;
      options.waitWorkers = false;
      c10d::PrefixStore other("gradtune/0/0", c10::make_intrusive<c10d::TCPStore>("127.0.0.1", options));
      other.set("join/0", std::vector<uint8_t>{'2'});  // the number of ranks
      other.wait({"join/1"}, std::chrono::seconds(kSlowness * 20));
      std::this_thread::sleep_for(std::chrono::milliseconds(50));
    }
    EXPECT_EQ(make_group(20)->getSize(), 2);
  });
  for (const RankEnd& end : ends) EXPECT_EQ(end.exit_code, 0) << end.output;
}

TEST(Failure, UnevenInputsAreNamed) {
  const auto ends = start_ranks(2, [](const Rank& rank) {
    auto group = make_group();
    auto model = make_mlp(1);
    torch::optim::SGD sgd(model->parameters(), 0.01);
    auto optimizer = wrap(sgd, *model, group, quiet({.timeout = kTimeoutS}));
    const int steps = rank.rank == 0 ? 8 : 5;
    try {
      for (int step = 0; step < steps; ++step) {
        optimizer.zero_grad();
        loss_of(model, make_data(rank.rank, step)).backward();
        optimizer.step();
      }
      EXPECT_EQ(rank.rank, 1);
    } catch (const std::exception& error) {
      EXPECT_THAT(error.what(), HasSubstr("suspected: rank 1 left after step 5"));
    }
  });
  for (const RankEnd& end : ends) EXPECT_EQ(end.exit_code, 0) << end.output;
}

}  // namespace
}  // namespace gradtune::test
