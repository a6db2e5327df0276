// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// Tests the function rounds() and what it returns.
#include <gmock/gmock.h>

#include <chrono>
#include <cmath>
#include <optional>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include "gradtune/rounds.h"
#include "tests/hooks/ranks.h"
#include "tests/hooks/rounds_jobs.h"
#include "tests/temp_folder.h"
#include "tuner/files/journal_reader.h"

namespace gradtune::test {
namespace {

using testing::HasSubstr;

TEST(RoundsOptimizer, WithOneUpdateARoundEqualsWrap) {
  run_ranks(2, [](const Rank& rank) {
    const auto group = make_group();
    Wrapped in_rounds(group, {.most = 1, .dense_steps = 5}, {.fidelity = "exact"});
    torch::nn::Sequential model = make_mlp(1);
    torch::optim::AdamW inner = make_inner(model);
    Optimizer optimizer = wrap(inner, *model, group, quiet({.fidelity = "exact"}));
    for (int64_t step = 0; step < 40; ++step) {
      in_rounds.step(rank.rank, step);
      optimizer.zero_grad();
      loss_of(model, make_data(rank.rank, step)).backward();
      optimizer.step();
    }
    EXPECT_TRUE(in_rounds.optimizer.progress().synchronous);
    for (size_t p = 0; p < model->parameters().size(); ++p) {
      EXPECT_TRUE(torch::equal(in_rounds.model->parameters()[p], model->parameters()[p])) << p;
    }
  });
}

TEST(RoundsOptimizer, GoesOverToRoundsAfterTheDenseSteps) {
  run_ranks(2, [](const Rank& rank) {
    const auto group = make_group();
    Wrapped job(group, {.most = 8, .least = 4, .dense_steps = 10}, {.fidelity = "half"});
    double longest_ms = 0;  // a single round of so few microseconds may seem to have no exchange
    for (int64_t step = 0; step < 210; ++step) {
      ASSERT_EQ(job.optimizer.progress().synchronous, step < 10);
      job.step(rank.rank, step);
      longest_ms = std::max(longest_ms, job.optimizer.progress().exchange_ms);
    }
    const auto progress = job.optimizer.progress();
    EXPECT_GE(progress.rounds, 200 / 8);
    EXPECT_LE(progress.rounds, 200 / 4);
    EXPECT_GE(progress.updates_a_round, 4);
    EXPECT_LE(progress.updates_a_round, 8);
    EXPECT_GT(longest_ms, 0);
    job.optimizer.end_round();
    for (const torch::Tensor& p : job.model->parameters()) EXPECT_EQ(difference_from_rank0(p, *group), 0);
    EXPECT_FALSE(job.optimizer.end_round());
  });
}

// 400 updates that take at least 15 ms each.
void train_slowly(Wrapped& job, int rank) {
  for (int64_t step = 0; step < 400; ++step) {
    std::this_thread::sleep_for(std::chrono::milliseconds(15));
    job.step(rank, step);
  }
}

// An exchange takes about as long as 2 to 3 updates. Without a delay, 50 of these would be needed.
TEST(RoundsOptimizer, ChoosesADelayWhereAskedToAndReportsTheWholeExchange) {
  run_ranks(2,
            [](const Rank& rank) {
              const auto group = make_group();
              Wrapped job(group, {.most = 24, .delay = std::nullopt, .dense_steps = 30},
                          {.fidelity = "exact", .tuning_budget = 60});
              train_slowly(job, rank.rank);
              const auto progress = job.optimizer.progress();
              EXPECT_FALSE(progress.synchronous);
              EXPECT_GT(progress.delay, 0);
              EXPECT_LE(progress.delay, progress.updates_a_round / 2);
              EXPECT_LT(progress.updates_a_round, 24);
              EXPECT_GT(progress.exchange_ms, progress.update_ms);  // though updates hide it
              job.optimizer.end_round();
              for (const torch::Tensor& p : job.model->parameters()) EXPECT_EQ(difference_from_rank0(p, *group), 0);
            },
            {.time_limit_s = 120, .environment = {{"GRADTUNE_PACING_MBIT", "5"}}});
}

// One batch of rank 1 is NaN, which also stays in the state of AdamW.
TEST(RoundsOptimizer, ALostRoundCostsNoLaterOnes) {
  run_ranks(2, [](const Rank& rank) {
    const auto group = make_group();
    Wrapped job(group, {.most = 3, .least = 3, .dense_steps = 5}, {.fidelity = "exact", .tuning_budget = 0});
    for (int64_t step = 0; step < 50; ++step) {
      if (rank.rank == 1 && step == 23) {
        for (torch::Tensor& p : job.model->parameters()) p.mutable_grad() = torch::full_like(p, NAN);
        job.optimizer.step();
        continue;
      }
      job.step(rank.rank, step);
    }
    EXPECT_EQ(job.optimizer.progress().rounds, 15);
    EXPECT_EQ(job.optimizer.progress().lost, 1);
    for (const torch::Tensor& p : job.model->parameters()) {
      EXPECT_TRUE(p.isfinite().all().item<bool>());
      EXPECT_EQ(difference_from_rank0(p, *group), 0);
    }
  });
}

void expect_a_checkpoint_to_go_on(const RoundOptions& of_rounds) {
  const TempFolder folder;
  run_ranks(2, [&](const Rank& rank) {
    const std::string name = folder.path("checkpoint");
    const auto group = make_group();
    const Options options{
        .fidelity = "lossy", .compressors = std::vector<std::string>{"int4packed"}, .tuning_budget = 0};
    Wrapped first(group, of_rounds, options);
    train(first, rank.rank, 0, 30);
    first.optimizer.save_checkpoint(name);
    Wrapped second(group, of_rounds, options);
    {
      const torch::NoGradGuard no_grad;
      for (size_t p = 0; p < first.model->parameters().size(); ++p) {
        second.model->parameters()[p].copy_(first.model->parameters()[p]);
      }
      std::stringstream text;
      torch::save(first.inner, text);
      torch::load(second.inner, text);
    }
    second.optimizer.load_checkpoint(name);
    EXPECT_EQ(second.optimizer.progress().rounds, first.optimizer.progress().rounds);
    train(first, rank.rank, 30, 20);
    train(second, rank.rank, 30, 20);
    for (size_t p = 0; p < first.model->parameters().size(); ++p) {
      EXPECT_TRUE(torch::equal(first.model->parameters()[p], second.model->parameters()[p])) << p;
    }
  });
}

TEST(RoundsOptimizer, AJobThatLoadsACheckpointGoesOnWithTheSameBits) {
  expect_a_checkpoint_to_go_on({.most = 3, .least = 3, .delay = 1, .dense_steps = 10});
}

TEST(RoundsOptimizer, AJobOfFragmentsThatLoadsACheckpointGoesOnWithTheSameBits) {
  expect_a_checkpoint_to_go_on({.most = 4, .least = 4, .delay = 1, .fragments = 3, .dense_steps = 10});
}

TEST(RoundsOptimizer, ACheckpointOfOtherFragmentsIsRefusedAndChangesNothing) {
  const TempFolder folder;
  run_ranks(2, [&](const Rank& rank) {
    const std::string name = folder.path("checkpoint");
    const auto group = make_group();
    const Options options{.fidelity = "exact", .tuning_budget = 0};
    Wrapped first(group, {.most = 4, .least = 4, .fragments = 2, .dense_steps = 1}, options);
    train(first, rank.rank, 0, 10);
    first.optimizer.save_checkpoint(name);
    Wrapped second(group, {.most = 4, .least = 4, .fragments = 3, .dense_steps = 1}, options);
    train(second, rank.rank, 0, 9);
    const int64_t rounds = second.optimizer.progress().rounds;
    EXPECT_THAT(message_of([&] { second.optimizer.load_checkpoint(name); }),
                HasSubstr("is of rounds with fragments 2, and this job has fragments 3; allowed is the same number"));
    EXPECT_EQ(second.optimizer.progress().rounds, rounds);
    train(second, rank.rank, 9, 8);
    EXPECT_EQ(second.optimizer.progress().rounds, rounds + 2);
  });
}

// The job hides more of its exchanges than it could with one fragment.
TEST(RoundsOptimizer, FragmentsHaveFilesOfTheirOwnAndADelayThatIsChosen) {
  const TempFolder folder;
  const std::string journal = folder.path("job.jsonl"), strategy = folder.path("strategy.json");
  const RoundOptions of_rounds{.most = 8, .delay = std::nullopt, .fragments = 2, .dense_steps = 10};
  run_ranks(2,
            [&](const Rank& rank) {
              const auto group = make_group();
              Wrapped job(group, of_rounds, {.fidelity = "exact", .tuning_budget = 60, .journal = journal});
              train_slowly(job, rank.rank);
              const auto progress = job.optimizer.progress();
              EXPECT_FALSE(progress.synchronous);
              EXPECT_GT(progress.delay, 0);
              EXPECT_LE(progress.delay, progress.updates_a_round / 2);
              job.optimizer.end_round();
              for (const torch::Tensor& p : job.model->parameters()) EXPECT_EQ(difference_from_rank0(p, *group), 0);
              const Optimizer::Result result = job.optimizer.result();
              EXPECT_THAT(result.description, AllOf(HasSubstr("fragment 1, "), HasSubstr("fragment 2, ")));
              EXPECT_EQ(result.decided, result.description.find("still tuned") == std::string::npos);
              job.optimizer.export_strategy(strategy);
              group->barrier()->wait();
              // A job may begin with the strategies of its fragments.
              Wrapped next(group, of_rounds, {.fidelity = "exact", .strategy = strategy, .tuning_budget = 0});
              train(next, rank.rank, 0, 12);
              // The variable names files of fragments too, so the synchronous steps before have none.
              setenv("GRADTUNE_STRATEGY", strategy.c_str(), /*overwrite=*/1);
              Wrapped last(group, of_rounds, {.fidelity = "exact", .tuning_budget = 0});
              train(last, rank.rank, 0, 12);
              EXPECT_EQ(last.optimizer.result().strategy, next.optimizer.result().strategy);
            },
            {.time_limit_s = 120, .environment = {{"GRADTUNE_PACING_MBIT", "2"}}});
  const std::vector<std::string> files = {folder.path("job.jsonl"), folder.path("job.fragment-2.jsonl")};
  size_t tensors = 0;
  for (const std::string& file : files) tensors += tuner::read_journal(file).value().job.table.tensors.size();
  EXPECT_EQ(tensors, make_mlp(1)->parameters().size());
  const tuner::JournalFile of_first = tuner::read_journal(files.front()).value();
  ASSERT_FALSE(of_first.rounds.empty());
  EXPECT_EQ(of_first.rounds.back().round.fragments, 2);
  EXPECT_EQ(of_first.rounds.back().allowed.fragments, 2);
}

TEST(RoundsOptimizer, TheJournalHoldsTheLengthsOfRoundsAndDecidesTheSameAgain) {
  const TempFolder folder;
  const std::string path = folder.path("job.jsonl");
  run_ranks(2, [&](const Rank& rank) {
    Wrapped job(make_group(), {.most = 6, .least = 2, .dense_steps = 10},
                {.fidelity = "lossy", .tuning_budget = 40, .journal = path});
    train(job, rank.rank, 0, 400);
  });
  const tuner::JournalFile file = tuner::read_journal(path).value();  // it replaced that of the dense steps
  ASSERT_FALSE(file.rounds.empty());
  EXPECT_FALSE(file.rounds.front().times);
  for (const tuner::RoundChoice& choice : file.rounds) {
    EXPECT_EQ(choice.allowed.least, 2);
    EXPECT_EQ(choice.allowed.most, 6);
  }
  EXPECT_EQ(tuner::decide_again(file).value(), file.decided);
}

TEST(RoundsOptimizer, RanksWithDifferentRoundsAreNamed) {
  run_ranks(2, [](const Rank& rank) {
    const auto group = make_group();
    EXPECT_THAT(message_of([&] { Wrapped(group, {.most = 8 - 4 * rank.rank}, {}); }),
                HasSubstr("rounds: most is 4 on rank 1 and 8 on rank 0"));
  });
}

TEST(RoundsOptimizer, OptionsThatAreNotAllowedAreNamed) {
  run_ranks(1, [](const Rank&) {
    const auto group = make_group();
    EXPECT_THAT(message_of([&] { Wrapped(group, {}, {}); }),
                HasSubstr("most is 0; allowed is a number of updates from 1 to 1000000"));
    const auto message = [&](RoundOptions of_rounds) {
      of_rounds.most = 8;
      return message_of([&] { Wrapped(group, of_rounds, {}); });
    };
    EXPECT_THAT(message({.least = 9}), HasSubstr("least is 9; allowed is a number of updates from 1 to most"));
    EXPECT_THAT(message({.least = 2, .delay = 2}), HasSubstr("delay is 2; allowed is 0, or a number of updates below"));
    EXPECT_THAT(message({.least = 4, .delay = 2, .fragments = 3}),
                HasSubstr("delay is 2; allowed is at most 1, which is least / fragments"));
    EXPECT_THAT(message({.fragments = 65}), HasSubstr("fragments is 65; allowed is a number from 1 to 64"));
    EXPECT_THAT(message({.fragments = 7}),
                HasSubstr("fragments is 7; allowed is at most the number of trained parameters, which is 6"));
    EXPECT_THAT(message({.fragments = 2, .uneven = true}), HasSubstr("or several fragments"));
    EXPECT_THAT(message({.delay = std::nullopt, .uneven = true}), HasSubstr("uneven is true; allowed is false with a"));
    EXPECT_THAT(message({.dense_steps = 0}), HasSubstr("dense_steps is 0; allowed is a number of steps above 0"));
    EXPECT_THAT(message({.outer_lr = 0}), HasSubstr("outer_lr is 0; allowed is a number above 0 and at most 1"));
    EXPECT_THAT(message({.outer_momentum = std::nan("")}),
                HasSubstr("outer_momentum is nan; allowed is a number from 0"));
  });
}

}  // namespace
}  // namespace gradtune::test
