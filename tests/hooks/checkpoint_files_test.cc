// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// Tests files of a checkpoint that do not belong together, or have changed, and jobs that fail or are killed while
// they save.
#include <gmock/gmock.h>

#include <csignal>
#include <cstdio>
#include <set>

#include "tests/hooks/checkpoint_job.h"

namespace gradtune::test {
namespace {

using testing::AllOf;
using testing::HasSubstr;

// --- files that are not what they should be --------------------------------------------------------------------------

TEST_F(Checkpoint, WhatDoesNotFitIsRefusedByNameAndNothingIsChanged) {
  write_strategy(path("strategy.json"), 2, table_of_model(), {std::string("topk:0.05") + kGather, kPowerSgd});
  run_phase("all", 2, [&](const Rank& rank) {
    auto group = make_group();
    const auto together = [&](const std::function<void()>& on_rank_0) {
      group->barrier()->wait();
      if (rank.rank == 0) on_rank_0();
      group->barrier()->wait();
    };
    const Options options = pinned(path("strategy.json"));
    Training whole(rank, group, options), job(rank, group, options);
    for (int step = 0; step < 3; ++step) {
      whole.step();
      job.step();
    }
    job.save(path("good"));
    for (int step = 0; step < 3; ++step) {
      whole.step();
      job.step();
    }
    job.save(path("later"));
    const auto file_of = [&](const std::string& folder, int of) {
      return path(folder) + "/" + tuner::rank_file_name(manifest_in(path(folder)).id, of);
    };
    int copies = 0;
    // The error from loading a copy of a good checkpoint in which rank 0 changed something.
    const auto refusal = [&](const std::function<void(const std::string& folder)>& change) {
      const std::string folder = "copy" + std::to_string(copies++);
      together([&] {
        fs::copy(path("good"), path(folder));
        change(folder);
      });
      return message_of([&] { job.session().load_checkpoint(path(folder)); });
    };
    const auto rewrite = [&](const std::string& file, const std::function<void(std::string&)>& change) {
      std::string text = tuner::read_file(file, 1 << 24).value();
      change(text);
      ASSERT_TRUE(tuner::write_file_atomically(file, text).ok());
    };

    EXPECT_THAT(refusal([&](const std::string& folder) { fs::remove(path(folder) + "/checkpoint.json"); }),
                HasSubstr("can not open " + path("copy0") + "/checkpoint.json"));
    EXPECT_THAT(refusal([&](const std::string& folder) {
                  fs::copy_file(file_of("later", 1), file_of(folder, 1), fs::copy_options::overwrite_existing);
                }),
                AllOf(HasSubstr("rank 1 can not load the checkpoint"), HasSubstr("it belongs to another checkpoint"),
                      HasSubstr("of step 6"), HasSubstr("of step 3")));
    EXPECT_THAT(refusal([&](const std::string& folder) {
                  fs::copy_file(file_of("good", 0), file_of(folder, 1), fs::copy_options::overwrite_existing);
                }),
                HasSubstr("it is that of rank 0, rank 1's is needed"));
    EXPECT_THAT(refusal([&](const std::string& folder) { fs::remove(file_of(folder, 1)); }),
                AllOf(HasSubstr("rank 1 can not load the checkpoint"), HasSubstr("No such file")));
    EXPECT_THAT(refusal([&](const std::string& folder) {
                  rewrite(file_of(folder, 1), [](std::string& text) { text.resize(text.size() - 1); });
                }),
                AllOf(HasSubstr("rank 1"), HasSubstr("it is cut off")));
    EXPECT_THAT(refusal([&](const std::string& folder) {
                  rewrite(file_of(folder, 0),
                          [](std::string& text) { text.back() = static_cast<char>(text.back() ^ 4); });
                }),
                AllOf(HasSubstr("rank 0"), HasSubstr("was changed: its checksum is another")));
    EXPECT_THAT(refusal([&](const std::string& folder) {
                  rewrite(path(folder) + "/checkpoint.json",
                          [](std::string& text) { text.replace(text.find("checkpoint/5"), 12, "checkpoint/2"); });
                }),
                HasSubstr("\"gradtune.checkpoint/5\" is needed, found \"gradtune.checkpoint/2\""));
    {
      auto other = make_mlp(1, /*width=*/32);
      torch::optim::SGD sgd(other->parameters(), 0.1);
      Session session(trained_by({&sgd}, *other), group, quiet());
      EXPECT_THAT(message_of([&] { session.load_checkpoint(path("good")); }), HasSubstr("it is for another model"));
      auto transposed = make_mlp(1);
      torch::Tensor weight = transposed->parameters()[0];
      weight.set_data(weight.detach().t().contiguous().t());
      torch::optim::SGD of_transposed(transposed->parameters(), 0.1);
      Session last(trained_by({&of_transposed}, *transposed), group, quiet());
      EXPECT_THAT(message_of([&] { last.load_checkpoint(path("good")); }), HasSubstr("or memory formats differ"));
    }
    EXPECT_EQ(job.session().progress().step, 6);
    for (int step = 0; step < 4; ++step) {
      whole.step();
      job.step();
    }
    EXPECT_TRUE(torch::equal(whole.parameters(), job.parameters())) << "as if nothing had been tried";
    Training again(rank, group, options, {path("good"), 3});
    for (int step = 0; step < 7; ++step) again.step();
    EXPECT_TRUE(torch::equal(whole.parameters(), again.parameters())) << "and what is good is loaded";
  });
}

TEST_F(Checkpoint, ItMayBeBetweenBackwardAndStep) {
  run_phase("all", 1, [&](const Rank&) {
    auto model = make_mlp(1);
    torch::optim::SGD sgd(model->parameters(), 0.1);
    auto optimizer = wrap(sgd, *model, make_group(), quiet());
    loss_of(model, make_data(0, 0)).backward();
    optimizer.save_checkpoint(path("x"));
    optimizer.step();
    EXPECT_EQ(optimizer.progress().step, 1);
    loss_of(model, make_data(0, 1)).backward();
    optimizer.load_checkpoint(path("x"));
    EXPECT_EQ(optimizer.progress().step, 0);
    optimizer.zero_grad();
    loss_of(model, make_data(0, 1)).backward();
    optimizer.step();
    optimizer.save_checkpoint(path("x"));
    optimizer.load_checkpoint(path("x"));
    EXPECT_EQ(optimizer.progress().step, 1);
  });
}

std::set<std::string> files_in(const std::string& folder) {
  std::set<std::string> names;
  for (const auto& entry : fs::directory_iterator(folder)) names.insert(entry.path().filename().string());
  return names;
}

TEST_F(Checkpoint, WhenOneRankCanNotSaveTheOneBeforeStaysAndTrainingGoesOn) {
  run_phase("all", 2, [&](const Rank& rank) {
    auto group = make_group();
    Training job(rank, group, {});
    for (int step = 0; step < 3; ++step) job.step();
    job.session().save_checkpoint(path("x"));
    group->barrier()->wait();
    const std::set<std::string> before = files_in(path("x"));
    EXPECT_EQ(before.size(), 3u);
    job.step();
    const std::string folder = rank.rank == 1 ? path("x/checkpoint.json/no_folder") : path("x");
    EXPECT_THAT(message_of([&] { job.session().save_checkpoint(folder); }),
                HasSubstr("rank 1 can not write the checkpoint: can not make the folder"));
    group->barrier()->wait();
    EXPECT_EQ(files_in(path("x")), before);
    job.step();
    job.session().save_checkpoint(path("x"));
    group->barrier()->wait();
    EXPECT_EQ(files_in(path("x")).size(), 3u) << "the older files are gone";
    EXPECT_EQ(manifest_in(path("x")).step, 5);
    job.session().load_checkpoint(path("x"));
    EXPECT_EQ(job.session().progress().step, 5);
  });
}

TEST_F(Checkpoint, AJobThatIsKilledWhileItSavesLeavesAWholeOne) {
  if (!is_of_another_phase("killed")) {
    const auto ends =
        start_ranks(2,
                    [&](const Rank& rank) {
                      Training job(rank, make_group(5), quiet({.timeout = 5}));
                      for (int step = 0; step < 100'000; ++step) {
                        job.step();
                        job.session().save_checkpoint(path("x"));
                        if (step == 3) std::puts("saved some"), std::fflush(stdout);
                      }
                    },
                    {.phase = "killed", .kill_rank = 1, .kill_after_s = 0.25, .kill_after_line = "saved some"});
    EXPECT_EQ(ends[1].exit_code, 128 + SIGKILL) << ends[1].output;
  }
  run_phase("after", 2, [&](const Rank& rank) {
    auto group = make_group();
    Training job(rank, group, {});
    job.session().load_checkpoint(path("x"));
    EXPECT_GE(job.session().progress().step, 4);
    job.step();
    job.session().save_checkpoint(path("x"));
    group->barrier()->wait();
    EXPECT_EQ(files_in(path("x")).size(), 3u) << "what the crash left is gone as well";
  });
}

}  // namespace
}  // namespace gradtune::test
