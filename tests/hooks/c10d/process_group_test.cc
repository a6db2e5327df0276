// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// Tests init_process_group(): repeatedly, beside another group, and when it cannot work. Every failure is a
// std::runtime_error of one line. failure_test covers ranks that die during it.
#include <gmock/gmock.h>
#include <sys/resource.h>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include <chrono>
#include <cstdlib>
#include <limits>
#include <stdexcept>
#include <string>
#include <thread>

#include "gradtune/gradtune.h"
#include "tests/hooks/ranks.h"

namespace gradtune::test {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::Not;
using testing::StartsWith;

using Group = c10::intrusive_ptr<c10d::ProcessGroup>;

float sum_over(const Group& group, float mine) {
  std::vector<torch::Tensor> tensors{torch::full({3}, mine)};
  group->allreduce(tensors)->wait();
  return tensors[0][2].item<float>();
}

// Returns the error, which must be of the type that users are told to catch.
std::string error_of_init(double timeout_s) {
  try {
    init_process_group(timeout_s);
  } catch (const std::runtime_error& error) {
    EXPECT_THAT(error.what(), AllOf(StartsWith("gradtune: "), Not(HasSubstr("\n"))));
    return error.what();
  } catch (const std::exception& error) {
    ADD_FAILURE() << "no std::runtime_error: " << error.what();
  }
  return "no error";
}

c10::intrusive_ptr<c10d::TCPStore> store_at_master_port(bool is_server) {
  c10d::TCPStoreOptions options;
  options.port = static_cast<uint16_t>(std::atoi(std::getenv("MASTER_PORT")));
  options.isServer = is_server;
  options.waitWorkers = false;
  return c10::make_intrusive<c10d::TCPStore>("127.0.0.1", options);
}

// As under torchrun: a store that lives as long as all ranks do, and all ranks are its clients.
class AgentStore {
 public:
  explicit AgentStore(const Rank& rank) : rank_(rank), store_(store_at_master_port(rank.rank == 0)) {
    setenv("TORCHELASTIC_USE_AGENT_STORE", "True", 1);
  }
  ~AgentStore() {
    store_->set("end/" + std::to_string(rank_.rank), std::vector<uint8_t>{1});
    if (rank_.rank != 0) return;
    for (int r = 0; r < rank_.size; ++r) store_->wait({"end/" + std::to_string(r)});
  }
  AgentStore(const AgentStore&) = delete;
  AgentStore& operator=(const AgentStore&) = delete;

  c10d::Store& operator*() { return *store_; }

 private:
  const Rank rank_;
  const c10::intrusive_ptr<c10d::TCPStore> store_;
};

TEST(ProcessGroup, ASecondOneWhileTheFirstLives) {
  run_ranks(2, [](const Rank& rank) {
    Group first = init_process_group(20);
    Group second = init_process_group(20);
    EXPECT_EQ(sum_over(first, 1), 2);
    EXPECT_EQ(sum_over(second, 2), 4);
    first.reset();
    const Group third = init_process_group(20);
    EXPECT_EQ(sum_over(third, 3), 6);
    EXPECT_EQ(sum_over(second, 4), 8);
    if (rank.rank == 0) std::this_thread::sleep_for(std::chrono::milliseconds(200));
  });
}

TEST(ProcessGroup, OneAfterAnotherOnAStoreThatOutlivesThem) {
  run_ranks(2, [](const Rank& rank) {
    const AgentStore agent(rank);
    for (int i = 1; i <= 5; ++i) {
      const Group group = init_process_group(8);
      EXPECT_EQ(sum_over(group, static_cast<float>(rank.rank + i)), static_cast<float>(2 * i + 1));
    }
  });
}

// One rank gave up, and asks again; the other one came only then.
TEST(ProcessGroup, OnceMoreOnAStoreThatSawAFailure) {
  run_ranks(2, [](const Rank& rank) {
    AgentStore agent(rank);
    if (rank.rank == 0) {
      EXPECT_EQ(sum_over(init_process_group(20), 1), 2);
      EXPECT_THAT(error_of_init(0.5), HasSubstr("rank 1 of 2 did not come to \"join\""));
      (*agent).set("gave up", std::vector<uint8_t>{1});
    } else {
      EXPECT_EQ(sum_over(init_process_group(20), 1), 2);
      (*agent).wait({"gave up"});
    }
    EXPECT_EQ(sum_over(init_process_group(20), 1), 2);
    EXPECT_EQ(sum_over(init_process_group(20), 1), 2);
  });
}

TEST(ProcessGroup, APortThatThisProcessHoldsIsNamed) {
  run_ranks(2, [](const Rank& rank) {
    if (rank.rank != 0) return;
    const auto own = store_at_master_port(/*is_server=*/true);
    EXPECT_THAT(error_of_init(5), AllOf(HasSubstr("rank 0: no store at "), HasSubstr("port "),
                                        HasSubstr("held by this process itself"), HasSubstr("another MASTER_PORT")));
  });
}

TEST(ProcessGroup, APortThatAnotherProcessHoldsIsNamed) {
  run_ranks(2, [](const Rank& rank) {
    if (rank.rank == 1) {
      const auto own = store_at_master_port(/*is_server=*/true);
      own->set("pid", {});
      own->wait({"seen"});
      return;
    }
    const auto other = store_at_master_port(/*is_server=*/false);
    other->wait({"pid"});
    EXPECT_THAT(error_of_init(5),
                AllOf(HasSubstr("held by another process, "), HasSubstr("(process_group_"), HasSubstr("MASTER_PORT")));
    other->set("seen", {});
  });
}

// The waiting rank says why nothing happens.
TEST(ProcessGroup, ARankThatIsAloneSaysWhomItWaitsFor) {
  for (const int present : {0, 1}) {
    const auto ends = start_ranks(2,
                                  +[](const Rank& rank) {
                                    if (rank.rank == std::atoi(std::getenv("PRESENT"))) error_of_init(kSlowness * 4.5);
                                  },
                                  {.environment = {{"PRESENT", std::to_string(present)}}});
    const std::string says = present == 0
                                 ? "gradtune: rank 0 waits for rank 1 of 2 at \"join\", which has to reach the "
                                   "store at 127.0.0.1:"
                                 : "gradtune: rank 1 waits for the store of rank 0 at 127.0.0.1:";
    EXPECT_THAT(ends[static_cast<size_t>(present)].output, HasSubstr(says));
    EXPECT_THAT(ends[static_cast<size_t>(1 - present)].output, Not(HasSubstr(" waits for ")));
  }
}

TEST(ProcessGroup, ATimeLimitThatIsNoneIsRefused) {
  struct Case {
    double timeout_s;
    const char* text;
  };
  for (const auto& [timeout_s, text] :
       {Case{-5, "-5"}, Case{0, "0"}, Case{1e18, "1e+18"}, Case{std::numeric_limits<double>::quiet_NaN(), "nan"},
        Case{std::numeric_limits<double>::infinity(), "inf"}}) {
    EXPECT_THAT(error_of_init(timeout_s),
                AllOf(HasSubstr("timeout_s is " + std::string(text) + ";"), HasSubstr("seconds from 0.01 to 1e+06")));
  }
}

TEST(ProcessGroup, VariablesThatCanNotBeAreRefused) {
  run_ranks(1, [](const Rank&) {
    setenv("RANK", "7", 1);
    EXPECT_THAT(error_of_init(5), HasSubstr("RANK is \"7\""));
  });
}

// The rank without its interface says so at once, and the others report it as missing.
TEST(ProcessGroup, AnInterfaceThatIsNotThereIsNamed) {
  for (const char* name : {"eth99", "^lo", "lo,eth99"}) {
    run_ranks(2,
              +[](const Rank& rank) {
                const auto start = std::chrono::steady_clock::now();
                if (rank.rank == 1) {
                  EXPECT_THAT(error_of_init(20), AllOf(HasSubstr("rank 1: GLOO_SOCKET_IFNAME is \""),
                                                       HasSubstr("lo (127."), HasSubstr("allowed are names")));
                  EXPECT_LE(std::chrono::steady_clock::now() - start, std::chrono::seconds(kSlowness * 3));
                  return;
                }
                setenv("GLOO_SOCKET_IFNAME", "lo", 1);
                EXPECT_THAT(error_of_init(2), HasSubstr("rank 1 of 2 did not come"));
                EXPECT_LE(std::chrono::steady_clock::now() - start, std::chrono::seconds(kSlowness * 4));
              },
              {.environment = {{"GLOO_SOCKET_IFNAME", name}}});
  }
}

// Gloo and c10d throw their own exceptions, at any place where descriptors run out.
TEST(ProcessGroup, TooFewDescriptorsAreAnError) {
  run_ranks(1, [](const Rank&) {
    rlimit limit{};
    ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &limit), 0);
    const int next = dup(0);
    close(next);
    for (rlim_t more = 0; more < 8; ++more) {
      limit.rlim_cur = static_cast<rlim_t>(next) + more;
      ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &limit), 0);
      const std::string error = error_of_init(5);
      EXPECT_NE(more > 0 ? "" : error, "no error");
    }
  });
}

// Each of these ranks is on its own machine, and rank 1 offers a loopback address: unreachable_rank_test.py.
TEST(ProcessGroup, AnAddressThatOthersCanNotReachIsNamed) {
  if (std::getenv("ON_MACHINES_OF_THEIR_OWN") == nullptr) GTEST_SKIP() << "unreachable_rank_test.py runs this";
  const auto start = std::chrono::steady_clock::now();
  EXPECT_THAT(error_of_init(8),
              AllOf(HasSubstr("connecting the group \"group\" failed"), HasSubstr("rank 1 offered 127."),
                    HasSubstr("MASTER_ADDR is " + std::string(std::getenv("MASTER_ADDR"))),
                    HasSubstr("set GLOO_SOCKET_IFNAME there to the interface")));
  EXPECT_LE(std::chrono::steady_clock::now() - start, std::chrono::seconds(kSlowness * 12));
}

}  // namespace
}  // namespace gradtune::test
