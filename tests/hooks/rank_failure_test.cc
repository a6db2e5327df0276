// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// A failure on one rank is at once an error on all ranks. Every rank ends within seconds, although the default time
// limit is minutes, and names the failed rank, the operation and the step.
#include <gmock/gmock.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <functional>
#include <stdexcept>
#include <thread>

#include "tests/hooks/jobs.h"
#include "tests/hooks/ranks.h"
#include "tests/temp_folder.h"

namespace gradtune::test {
namespace {

using testing::AllOf;
using testing::AnyOf;
using testing::HasSubstr;

// The model of a case: with buffers, which are sent as well.
torch::nn::Sequential make_normed() {
  torch::manual_seed(1);
  return torch::nn::Sequential(torch::nn::Linear(20, 16), torch::nn::BatchNorm1d(16), torch::nn::Linear(16, 5));
}

struct Training {
  Rank rank;
  torch::nn::Sequential model;
  Optimizer& optimizer;
  int64_t step;
  c10::intrusive_ptr<c10d::ProcessGroup> group;

  void backward(int64_t batch = 0) { loss_of(model, make_data(rank.rank, step + batch)).backward(); }
  void whole_step() {
    optimizer.zero_grad();
    backward();
    optimizer.step();
  }
};

void throw_in_forward(Training&) { throw std::runtime_error("of the user"); }

torch::Tensor loss_that_throws(Training& t, const std::function<bool()>& when) {
  torch::Tensor hidden = t.model[0]->as<torch::nn::Linear>()->forward(make_data(t.rank.rank, t.step).inputs);
  hidden.register_hook([when](const torch::Tensor&) {
    if (when()) throw std::runtime_error("of the user");
  });
  return t.model[2]->as<torch::nn::Linear>()->forward(hidden).square().sum();
}

bool always() { return true; }

void throw_in_backward(Training& t) { loss_that_throws(t, always).backward(); }

void throw_in_backward_with_graph(Training& t) {
  loss_that_throws(t, always).backward({}, /*retain_graph=*/true, /*create_graph=*/true);
}

// Throws in the pass that accumulates gradients, not in the earlier one, which is part of the loss.
void throw_in_backward_of_penalty(Training& t) {
  torch::Tensor loss = loss_that_throws(t, [] { return !torch::GradMode::is_enabled(); });
  for (const torch::Tensor& gradient :
       torch::autograd::grad({loss}, {t.model->parameters().front(), t.model->parameters().back()}, {},
                             /*retain_graph=*/true, /*create_graph=*/true)) {
    loss = loss + gradient.square().sum();
  }
  loss.backward();
}

constexpr int64_t kStayMs = 5000;

// The rank neither uses the optimizer again nor ends.
template <void (*kThrow)(Training&)>
void stay_after(Training& t) {
  try {
    kThrow(t);
  } catch (const std::runtime_error&) {
    std::this_thread::sleep_for(std::chrono::milliseconds(kStayMs));
    throw;
  }
}

struct Case {
  const char* name;
  int wrong;                            // the rank that acts differently in step 3
  void (*instead)(Training& training);  // its action instead of a whole step
  testing::Matcher<const std::string&> others, own;
  bool stays = false;  // the wrong rank stays for a while before it ends
};

void PrintTo(const Case& each, std::ostream* out) { *out << each.name; }

const auto kOfTheUser = HasSubstr("of the user");

const Case kCases[] = {
    {"ExceptionInForward", 1, throw_in_forward,
     HasSubstr("another rank failed: rank 1 at step 3: training ended with an exception"), kOfTheUser},
    {"ExceptionInForwardOfTheRankWithTheStore", 0, throw_in_forward,
     HasSubstr("another rank failed: rank 0 at step 3: training ended with an exception"), kOfTheUser},
    {"ExceptionInBackward", 1, throw_in_backward,
     HasSubstr("another rank failed: rank 1 at step 3: a backward pass ended with an exception"), kOfTheUser},
    {"ExceptionInBackwardAfterWhichTheRankStays", 1, stay_after<throw_in_backward>,
     HasSubstr("another rank failed: rank 1 at step 3: a backward pass ended with an exception"), kOfTheUser,
     /*stays=*/true},
    {"ExceptionInBackwardWithAGraphAfterWhichTheRankStays", 1, stay_after<throw_in_backward_with_graph>,
     HasSubstr("another rank failed: rank 1 at step 3: a backward pass ended with an exception"), kOfTheUser,
     /*stays=*/true},
    {"ExceptionInBackwardOfAPenaltyAfterWhichTheRankStays", 1, stay_after<throw_in_backward_of_penalty>,
     HasSubstr("another rank failed: rank 1 at step 3: a backward pass ended with an exception"), kOfTheUser,
     /*stays=*/true},
    {"CheckpointOnOneRank", 0,
     [](Training& t) {
       t.optimizer.save_checkpoint(TempFolder().path());
       t.whole_step();
     },
     HasSubstr("save_checkpoint() at step 3"), HasSubstr("backward at step 3")},
    {"CheckpointOnTheOtherRank", 1,
     [](Training& t) {
       t.optimizer.save_checkpoint(TempFolder().path());
       t.whole_step();
     },
     HasSubstr("save_checkpoint() at step 3"), HasSubstr("backward at step 3")},
    {"LoadOnOneRank", 0,
     [](Training& t) {
       t.optimizer.load_checkpoint(TempFolder().path());
       t.whole_step();
     },
     HasSubstr("step 3"), HasSubstr("load_checkpoint")},
    {"WrapAgainOnOneRank", 1,
     [](Training& t) {
       t.optimizer = wrap(t.optimizer.inner(), *t.model, t.group, {.quiet = true});
       t.whole_step();
     },
     HasSubstr("wrap() at step 3"), HasSubstr("backward at step 3")},
    {"NoStepOnOneRank", 1,
     [](Training& t) {
       t.optimizer.zero_grad();
       t.backward();
     },
     AnyOf(HasSubstr("rank 1 is in step 3, rank 0 in step 4"), HasSubstr("step() at step 3")),
     AnyOf(HasSubstr("rank 1 is in step 3, rank 0 in step 4"), HasSubstr("step() at step 3"))},
    {"NoStepOnTheRankWithTheStore", 0,
     [](Training& t) {
       t.optimizer.zero_grad();
       t.backward();
     },
     AnyOf(HasSubstr("rank 1 is in step 4, rank 2 is in step 4, rank 0 in step 3"), HasSubstr("step() at step 3")),
     AnyOf(HasSubstr("rank 1 is in step 4, rank 2 is in step 4, rank 0 in step 3"), HasSubstr("step() at step 3"))},
    {"NoBackwardOnOneRank", 1, [](Training& t) { t.optimizer.step(); }, HasSubstr("step 4"), HasSubstr("step 4")},
    {"NoSyncOnOneRank", 1,
     [](Training& t) {
       const auto guard = t.optimizer.no_sync();
       t.whole_step();
     },
     HasSubstr("step 4"), HasSubstr("step 4")},
    {"OneMoreBackward", 1,
     [](Training& t) {
       t.optimizer.zero_grad();
       t.backward();
       t.backward(1);
       t.optimizer.step();
     },
     HasSubstr("step"), HasSubstr("step")},
    {"ParameterMovedOnOneRank", 1,
     [](Training& t) {
       t.model->to(torch::kBFloat16);
       t.optimizer.step();
     },
     HasSubstr("was moved, converted or replaced since wrap"), HasSubstr("was moved, converted or replaced")},
    {"GroupAddedOnOneRank", 1,
     [](Training& t) {
       t.optimizer.inner().add_param_group(
           torch::optim::OptimizerParamGroup({torch::zeros({3, 5}, torch::requires_grad())}));
       t.whole_step();
     },
     HasSubstr("parameters or groups of the optimizer were added"), HasSubstr("of shape [3, 5]")},
    {"LayerAddedOnOneRank", 1,
     [](Training& t) {
       t.model->push_back(torch::nn::Linear(5, 5));
       t.whole_step();
     },
     HasSubstr("parameter 3.weight was added"), HasSubstr("parameter 3.weight was added")},
    {"BufferThatGrowsOnOneRank", 1,
     [](Training& t) {
       t.model->named_buffers()["1.running_mean"].resize_({17});
       t.optimizer.zero_grad();
       for (torch::Tensor& p : t.model->parameters()) p.square().sum().backward();
       t.optimizer.step();
     },
     HasSubstr("buffer 1.running_mean: shape is [17] on rank 1 and [16] on rank 0"),
     HasSubstr("buffer 1.running_mean: shape is [17] on rank 1 and [16] on rank 0")},
};

int64_t now_ms() {
  return std::chrono::duration_cast<std::chrono::milliseconds>(std::chrono::system_clock::now().time_since_epoch())
      .count();
}

void train(const Rank& rank, const Case& each) {
  auto group = make_group();
  auto model = make_normed();
  torch::optim::SGD sgd(model->parameters(), 0.01);
  try {
    auto optimizer = wrap(sgd, *model, group, {.quiet = true});
    for (int64_t step = 0; step < 100; ++step) {
      Training training{rank, model, optimizer, step, group};
      rank.rank == each.wrong&& step == 3 ? each.instead(training) : training.whole_step();
    }
  } catch (const std::runtime_error& error) {
    std::printf("ERROR %ld %s\n", static_cast<long>(now_ms()), error.what());
    std::fflush(stdout);
    _exit(7);
  }
  FAIL() << "nothing was noticed";
}

class RankFailure : public testing::TestWithParam<Case> {};

TEST_P(RankFailure, IsEverybodysAtOnce) {
  const Case& each = GetParam();
  const auto ends = start_ranks(3, [&](const Rank& rank) { train(rank, each); }, {.time_limit_s = 20});
  std::vector<int64_t> times;
  for (int rank = 0; rank < static_cast<int>(ends.size()); ++rank) {
    const RankEnd& end = ends[static_cast<size_t>(rank)];
    EXPECT_TRUE(end.in_time && end.exit_code == 7) << "rank " << rank << ":\n" << end.output;
    const size_t at = end.output.find("ERROR ");
    ASSERT_NE(at, std::string::npos) << "rank " << rank << ":\n" << end.output;
    times.push_back(std::stoll(end.output.substr(at + 6)));
    EXPECT_THAT(end.output.substr(at), rank == each.wrong ? each.own : each.others) << "rank " << rank;
  }
  // A rank that stays without a call reports its own error that much later.
  if (each.stays) times[static_cast<size_t>(each.wrong)] -= kStayMs;
  const auto [first, last] = std::ranges::minmax(times);
  // The other ranks end after the failed one. If it stays, they wait for its end as long as they may.
  constexpr int64_t kWaitForEndMs = 5'000;
  EXPECT_LE(last - first, kSlowness * 2000 + (each.stays ? kWaitForEndMs : 0)) << "ms after the first rank's error";
}

INSTANTIATE_TEST_SUITE_P(All, RankFailure, testing::ValuesIn(kCases), [](const auto& each) { return each.param.name; });

// Holds even if the rank with the store ends long before the others.
TEST(RankFailure, AHealthyEndIsSilent) {
  const auto ends = start_ranks(2, [](const Rank& rank) {
    auto group = make_group();
    auto model = make_mlp(1);
    torch::optim::SGD sgd(model->parameters(), 0.1);
    auto optimizer = wrap(sgd, *model, group, quiet());
    for (int step = 0; step < 3; ++step) {
      optimizer.zero_grad();
      loss_of(model, make_data(rank.rank, step)).backward();
      optimizer.step();
    }
    if (rank.rank == 1) std::this_thread::sleep_for(std::chrono::seconds(2));
  });
  for (const RankEnd& end : ends) {
    EXPECT_EQ(end.exit_code, 0) << end.output;
    EXPECT_THAT(end.output, testing::Not(AnyOf(HasSubstr("frame #"), HasSubstr("failed on")))) << end.output;
  }
}

TEST(RankFailure, RanksThatWereToldOtherNumbersOfRanksAreNamed) {
  for (const int more_on : {0, 1}) {
    const auto ends = start_ranks(
        2,
        +[](const Rank& rank) {
          const std::string more_here = std::getenv("MORE_ON");
          if (more_here == std::to_string(rank.rank)) setenv("WORLD_SIZE", "3", 1);
          const int64_t begin_ms = now_ms();
          EXPECT_THAT(message_of([] { init_process_group(/*timeout_s=*/60); }),
                      AllOf(HasSubstr("the number of ranks is "), HasSubstr("2 on rank "),
                            HasSubstr("3 on rank " + more_here), HasSubstr("start all with the same WORLD_SIZE")));
          EXPECT_LE(now_ms() - begin_ms, 20'000);
        },
        {.environment = {{"MORE_ON", std::to_string(more_on)}}});
    for (const RankEnd& end : ends) EXPECT_EQ(end.exit_code, 0) << end.output;
  }
}

// An error before ranks meet is reported to the others as well.
TEST(RankFailure, ARefusalInWrapIsEverybodysAtOnce) {
  run_ranks(2, [](const Rank& rank) {
    auto group = make_group();
    auto model = make_mlp(1);
    torch::optim::SGD sgd(model->parameters(), 0.1);
    const auto message = [&](const Options& of_rank1) {
      const int64_t begin_ms = now_ms();
      std::string text =
          message_of([&] { wrap(sgd, *model, group, rank.rank == 1 ? of_rank1 : Options{.quiet = true}); });
      EXPECT_LE(now_ms() - begin_ms, kSlowness * 5000);
      return text;
    };
    const auto told = [&](const char* what) {
      return rank.rank == 1 ? AllOf(HasSubstr("gradtune: "), HasSubstr(what))
                            : AllOf(HasSubstr("another rank failed: rank 1 failed in wrap"), HasSubstr(what));
    };
    EXPECT_THAT(message({.fidelity = "loss"}), told("option fidelity"));
    EXPECT_THAT(message({.timeout = -1}), told("option timeout"));
    EXPECT_THAT(message({.fidelity = "lossy", .compressors = {{"zip"}}}), told("zip"));
    auto stranger = torch::zeros({3}, torch::requires_grad());
    torch::optim::SGD with_stranger({stranger}, 0.1);
    EXPECT_THAT(message_of([&] { wrap(rank.rank == 1 ? with_stranger : sgd, *model, group, quiet()); }),
                told("not in the module"));
    EXPECT_EQ(message({.quiet = true}), "no error") << "the same group serves the next wrap";
  });
}

}  // namespace
}  // namespace gradtune::test
