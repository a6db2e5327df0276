// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// The policies that plan, in real jobs: two processes, Gloo between them at a paced rate.
#include <gmock/gmock.h>

#include <map>

#include "hooks/c10d/allowed_cores.h"
#include "tests/hooks/jobs.h"
#include "tests/hooks/ranks.h"
#include "tests/temp_folder.h"
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

void plan_a_job(const std::string& policy) {
  const TempFolder folder;
  const std::string file = folder.path("journal.jsonl");
  const auto body = [&](const Rank& rank) {
    const Optimizer::Result result =
        train(rank, {.fidelity = "lossy", .policy = policy, .tuning_share = 1.0, .host_threads = 1, .journal = file});
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
    EXPECT_THAT(decided, HasSubstr("\"what\":\"predict\",\"label\":\"" + policy + " 1:"));
    // Told the same, a tuner decides the same, byte for byte (I9): all that a plan depends on is in the journal.
    const auto again = tuner::decide_again(journal.value());
    ASSERT_TRUE(again.ok()) << again.error().message;
    EXPECT_EQ(again.value(), journal.value().decided);
  };
  // At that rate and fidelity every planner expects a plan to be faster, also where a busy machine times a few steps
  // badly.
  run_ranks(2, body, {.time_limit_s = 120, .environment = {{"GRADTUNE_PACING_MBIT", "200"}}});
}

TEST(PlannedJob, AutoDecides) { plan_a_job("auto"); }
TEST(PlannedJob, EspressoDecides) { plan_a_job("espresso"); }

}  // namespace
}  // namespace gradtune::test
