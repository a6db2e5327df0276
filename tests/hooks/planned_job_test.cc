// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// Tests policy `auto` in real jobs: two processes, with Gloo between them at a paced rate.
#include <gmock/gmock.h>

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "hooks/c10d/allowed_cores.h"
#include "hooks/session.h"
#include "hooks/trained_by.h"
#include "tests/hooks/jobs.h"
#include "tests/hooks/ranks.h"
#include "tests/temp_folder.h"
#include "tests/tuner/recorded_audience.h"
#include "tuner/files/journal_reader.h"

namespace gradtune::test {
namespace {

using ::testing::HasSubstr;

Optimizer::Result train(const Rank& rank, const Options& options) {
  auto group = make_group();
  auto model = make_mlp(1, 700);
  torch::optim::SGD sgd(model->parameters(), 0.05);
  auto optimizer = wrap(sgd, *model, group, quiet(options));
  train_until_decided(optimizer, *group, [&](int step) {
    optimizer.zero_grad();
    loss_of(model, make_data(rank.rank, step % 16)).backward();
    optimizer.step();
  });
  for (const torch::Tensor& p : model->parameters()) EXPECT_EQ(difference_from_rank0(p, *group), 0);
  return optimizer.result();
}

TEST(PlannedJob, AutoDecidesAndItsJournalSaysWhatItKnew) {
  const TempFolder folder;
  const std::string file = folder.path("journal.jsonl");
  const auto body = [&](const Rank& rank) {
    const Optimizer::Result result =
        train(rank, {.fidelity = "lossy", .journal = file, .policy = "auto", .tuning_share = 1.0, .host_threads = 1});
    if (rank.rank != 0) return;
    EXPECT_TRUE(result.decided);
    const auto journal = tuner::read_journal(file);
    ASSERT_TRUE(journal.ok()) << journal.error().message;
    EXPECT_FALSE(journal.value().timings.empty());
    const policies::Cores cores = journal.value().job.machine.cores;
    EXPECT_EQ(2 * cores.of_rank, allowed_cores().count) << "both ranks may run on the same ones";
    EXPECT_GT(cores.computing, 0);
    std::string decided;
    for (const std::string& line : journal.value().decided) decided += line + "\n";
    EXPECT_THAT(decided, HasSubstr(R"("what":"predict","label":"auto 1:)"));
    // A tuner with the same input decides the same, byte for byte (I9): the journal holds everything that a plan
    // depends on.
    const auto again = tuner::decide_again(journal.value());
    ASSERT_TRUE(again.ok()) << again.error().message;
    EXPECT_EQ(again.value(), journal.value().decided);
  };
  // At that rate and fidelity the planner expects a plan to be faster, even if a busy machine times a few steps
  // badly.
  run_ranks(2, body, {.time_limit_s = 120, .environment = {{"GRADTUNE_PACING_MBIT", "200"}}});
}

// Strategies name their tensors, and readers accept names of at most 4096 bytes.
struct LongNamed final : torch::nn::Module {
  LongNamed() {
    for (const char* name : {"first", "second", "third"}) all.push_back(register_parameter(name, torch::ones({5000})));
    all.push_back(register_parameter(std::string(5000, 'n'), torch::ones({5000})));
  }
  std::vector<torch::Tensor> all;
};

TEST(PlannedJob, WhyNoStrategyCouldBePreparedIsSaid) {
  run_ranks(2, [](const Rank& rank) {
    const auto group = make_group();
    LongNamed model;
    torch::optim::SGD sgd(model.parameters(), 0.01);
    const auto front = std::make_shared<tuner::Recorded<Front>>();
    {
      Session session(
          trained_by({&sgd}, model), group,
          {.fidelity = "half", .tuning_budget = 400, .timeout = 60, .policy = "mergecomp", .tuning_share = 1},
          std::make_unique<core::SteadyClock>(), front);
      for (int step = 0; step < 150; ++step) {
        session.zero_grad();
        torch::stack(model.all).sum().backward();
        session.step(nullptr);
      }
    }
    const std::string why = "tensors[3]: a text of at most 4096 bytes is needed, found a text of 5000 bytes";
    EXPECT_THAT(front->warnings, testing::ElementsAre("rank " + std::to_string(rank.rank) +
                                                      ": a strategy could not be prepared, and is not tried: " + why));
    if (rank.rank == 0) {
      EXPECT_THAT(front->text, HasSubstr("no candidate could be prepared: " + why));
    }
  });
}

}  // namespace
}  // namespace gradtune::test
