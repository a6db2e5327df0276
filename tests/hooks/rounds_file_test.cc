// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// Tests the file of a checkpoint of rounds.
#include <gmock/gmock.h>

#include <chrono>
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

// A job was ended while it saved: the new state is there, with the new checkpoints of all sessions but the last.
void expect_the_one_before(int64_t fragments) {
  const TempFolder folder;
  run_ranks(2, [&](const Rank& rank) {
    const fs::path name = folder.path("checkpoint"), before = folder.path("before");
    const auto group = make_group();
    const RoundOptions of_rounds{.most = 4, .least = 4, .fragments = fragments, .dense_steps = 2};
    const Options options{.fidelity = "exact", .tuning_budget = 0};
    Wrapped job(group, of_rounds, options);
    train(job, rank.rank, 0, 14);
    job.optimizer.save_checkpoint(name);
    const int64_t first = job.optimizer.progress().rounds;
    group->barrier()->wait();
    if (rank.rank == 0) fs::copy(name, before, fs::copy_options::recursive);
    group->barrier()->wait();
    train(job, rank.rank, 14, 8);
    job.optimizer.save_checkpoint(name);
    const auto expect_rounds = [&](int64_t rounds) {
      group->barrier()->wait();
      Wrapped other(group, of_rounds, options);
      other.optimizer.load_checkpoint(name);
      EXPECT_EQ(other.optimizer.progress().rounds, rounds);
      group->barrier()->wait();
    };
    expect_rounds(job.optimizer.progress().rounds);
    if (rank.rank == 0) {
      int files = 0, folders = 0;
      for (const auto& entry : fs::directory_iterator(name)) {
        files += entry.path().extension() == ".pt" ? 1 : 0;
        folders += entry.is_directory() ? 1 : 0;
      }
      EXPECT_EQ(files, 1);  // older ones are gone
      EXPECT_EQ(folders, fragments == 1 ? 0 : fragments);
      for (const auto& entry : fs::directory_iterator(name)) {
        if (fragments > 1 && entry.path().extension() == ".fragment-" + std::to_string(fragments))
          fs::remove_all(entry);
      }
      fs::copy(before, name, fs::copy_options::recursive | fs::copy_options::overwrite_existing);
    }
    EXPECT_LT(first, job.optimizer.progress().rounds);
    expect_rounds(first);
  });
}

TEST(RoundsFile, ACheckpointIsCompleteUntilTheNextOneIs) { expect_the_one_before(1); }
TEST(RoundsFile, ACheckpointOfFragmentsIsCompleteUntilTheNextOneIs) { expect_the_one_before(2); }

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
                HasSubstr("rank 0 can not read the checkpoint: there is no file rounds-STEP.pt in "));
    train(other, rank.rank, 0, 8);
    EXPECT_EQ(other.optimizer.progress().rounds, 2);
  });
}

// The other rank goes on with a pass, so this one would wait for as long as the timeout, which is 30 s here.
void expect_a_rank_alone_to_be_named(bool saves) {
  const TempFolder folder;
  run_ranks(2, [&](const Rank& rank) {
    Wrapped job(make_group(), {.most = 3, .least = 3, .dense_steps = 5}, {.timeout = 30});
    train(job, rank.rank, 0, 2);
    const auto began = std::chrono::steady_clock::now();
    const std::string message = message_of([&] {
      if (rank.rank == 0) saves ? job.optimizer.save_checkpoint(folder.path("x")) : job.optimizer.load_checkpoint("x");
      train(job, rank.rank, 2, 100);
    });
    EXPECT_THAT(message, AllOf(HasSubstr("backward"), HasSubstr(saves ? "save_checkpoint()" : "load_checkpoint()")));
    EXPECT_LT(std::chrono::steady_clock::now() - began, std::chrono::seconds(20));
  });
}

TEST(RoundsFile, ARankThatSavesAloneIsNamed) { expect_a_rank_alone_to_be_named(/*saves=*/true); }
TEST(RoundsFile, ARankThatLoadsAloneIsNamed) { expect_a_rank_alone_to_be_named(/*saves=*/false); }

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
