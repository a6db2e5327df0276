// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// Tests the file of a checkpoint of rounds.
#include <gmock/gmock.h>

#include <filesystem>
#include <string>
#include <vector>

#include "tests/hooks/ranks.h"
#include "tests/hooks/rounds_jobs.h"
#include "tests/temp_folder.h"

namespace gradtune::test {
namespace {

namespace fs = std::filesystem;
using testing::HasSubstr;

// A job that was ended while it saved leaves the state of the new checkpoint beside the checkpoint before.
TEST(RoundsFile, TheStateIsThatOfTheCheckpointBesideIt) {
  const TempFolder folder;
  const std::string name = folder.path("checkpoint");
  run_ranks(2, [&](const Rank& rank) {
    const auto group = make_group();
    const RoundOptions of_rounds{.most = 3, .least = 3, .dense_steps = 2};
    const Options options{.fidelity = "exact", .tuning_budget = 0};
    Wrapped job(group, of_rounds, options);
    train(job, rank.rank, 0, 14);
    job.optimizer.save_checkpoint(name);
    train(job, rank.rank, 14, 6);
    job.optimizer.save_checkpoint(name);
    group->barrier()->wait();
    std::vector<fs::path> files;
    for (const auto& entry : fs::directory_iterator(name)) {
      if (entry.path().extension() == ".pt") files.push_back(entry.path());
    }
    ASSERT_EQ(files.size(), 1);  // that of the checkpoint before is gone
    group->barrier()->wait();
    if (rank.rank == 0) fs::copy_file(files[0], fs::path(name) / "rounds-1000000.pt");
    group->barrier()->wait();
    Wrapped other(group, of_rounds, options);
    other.optimizer.load_checkpoint(name);
    EXPECT_EQ(other.optimizer.progress().rounds, 6);
  });
}

// Each rank has a disk of its own, and that of rank 1 lost the file.
TEST(RoundsFile, AFileThatOneRankLacksIsAnErrorOnAllAndChangesNothing) {
  const TempFolder folder;
  run_ranks(2, [&](const Rank& rank) {
    const std::string name = folder.path("checkpoint-" + std::to_string(rank.rank));
    const auto group = make_group();
    const RoundOptions of_rounds{.most = 3, .least = 3, .dense_steps = 2};
    const Options options{.fidelity = "exact", .tuning_budget = 0};
    Wrapped job(group, of_rounds, options);
    train(job, rank.rank, 0, 14);
    job.optimizer.save_checkpoint(name);
    for (const auto& entry : fs::directory_iterator(name)) {
      if (rank.rank == 1 && entry.path().extension() == ".pt") torch::save(torch::ones({2}), entry.path().string());
    }
    Wrapped other(group, of_rounds, options);
    EXPECT_THAT(message_of([&] { other.optimizer.load_checkpoint(name); }),
                AllOf(HasSubstr("rank 1 can not read the checkpoint"), HasSubstr("holds no state of rounds")));
    EXPECT_TRUE(other.optimizer.progress().synchronous);
    EXPECT_THAT(message_of([&] { other.optimizer.load_checkpoint(folder.path("none")); }),
                HasSubstr("rank 0 can not read the checkpoint"));
    train(other, rank.rank, 0, 8);
    EXPECT_EQ(other.optimizer.progress().rounds, 2);
  });
}

TEST(RoundsFile, TheStateOfAnotherModelIsRefusedAndTrainingStaysSynchronous) {
  const TempFolder folder;
  const std::string name = folder.path("checkpoint");
  run_ranks(2, [&](const Rank& rank) {
    const auto group = make_group();
    const RoundOptions of_rounds{.most = 3, .least = 3, .dense_steps = 2};
    Wrapped job(group, of_rounds, {});
    train(job, rank.rank, 0, 14);
    job.optimizer.save_checkpoint(name);
    torch::nn::Sequential model(torch::nn::Linear(3, 2));
    torch::optim::AdamW inner = make_inner(model);
    RoundsOptimizer other = rounds(inner, *model, group, of_rounds, quiet({}));
    EXPECT_THAT(message_of([&] { other.load_checkpoint(name); }), HasSubstr("allowed is one for each of the 2"));
    EXPECT_TRUE(other.progress().synchronous);
  });
}

}  // namespace
}  // namespace gradtune::test
