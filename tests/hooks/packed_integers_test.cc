// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// Tests payloads that are not full, in real processes. A job learns how many bits its own gradients take, from a
// sample before the first of them is sent, and then from the sent payloads.
#include <gmock/gmock.h>
#include <torch/torch.h>

#include "engine/compress/compressor.h"
#include "policies/cost/cost_fit.h"
#include "tests/hooks/jobs.h"
#include "tests/hooks/ranks.h"
#include "tests/temp_folder.h"
#include "tuner/files/journal_reader.h"

namespace gradtune::test {
namespace {

struct OneMatrixImpl : torch::nn::Module {
  OneMatrixImpl() { weight = register_parameter("weight", torch::zeros({80, 100})); }
  torch::Tensor weight;
};
TORCH_MODULE(OneMatrix);

// The used share of payloads of int4packed: of the sample, and of the sent payloads in the cost model.
struct Uses {
  double sampled = -1, sent = -1;
};
Uses learned_uses(double share_of_zeros) {
  const TempFolder folder;
  const std::string journal = folder.path("journal.jsonl");
  run_ranks(2,
            [&](const Rank& rank) {
              auto group = make_group();
              OneMatrix model;
              torch::optim::SGD sgd(model->parameters(), 0.01);
              auto optimizer = wrap(sgd, *model, group,
                                    quiet({.fidelity = "lossy",
                                           .compressors = std::vector<std::string>{"int4packed"},
                                           .tuning_budget = 60,
                                           .journal = journal}));
              for (int step = 0; step < 80; ++step) {
                torch::manual_seed(1'000 * step + rank.rank);
                optimizer.zero_grad();
                const torch::Tensor gradient =
                    torch::randn({80, 100}) * (torch::rand({80, 100}) >= share_of_zeros).to(torch::kFloat);
                (model->weight * gradient).sum().backward();
                optimizer.step();
              }
            },
            {.environment = {{"GRADTUNE_PACING_MBIT", "5"}}});
  const auto read = tuner::read_journal(journal);
  EXPECT_TRUE(read.ok());
  if (!read) return {};
  const tuner::Job& job = read.value().job;
  const policies::FittedCost fitted =
      policies::fit_cost(read.value().runs(), job.table, job.ranks, compress::known_traits(), {}, job.machine);
  const std::vector<core::CodecUse>& sampled = job.table.uses;
  EXPECT_EQ(sampled.size(), 1U);
  return {.sampled = sampled.empty() ? -1 : sampled[0].share,
          .sent = policies::find_use(fitted.table, {"int4packed", 256}).value_or(-1)};
}

double usual_use() { return core::traits_of({"int4packed", 256}, compress::known_traits())->usual_use; }

// 3.56 of 4.17 bits.
TEST(PackedIntegers, OfNormallyDistributedGradientsTakeMoreThanUsualAndTheJobLearnsIt) {
  const auto [sampled, sent] = learned_uses(0);
  EXPECT_NEAR(sent, 0.854, 0.02);
  EXPECT_NEAR(sampled, sent, 0.02);
  EXPECT_GT(sent, usual_use() + 0.1) << "what this test is about";
}

TEST(PackedIntegers, OfGradientsThatAreMostlyZeroTakeLess) {
  const auto [sampled, sent] = learned_uses(0.98);
  EXPECT_GT(sent, 0.2);
  EXPECT_LT(sent, usual_use() - 0.2);
  EXPECT_NEAR(sampled, sent, 0.1) << "an average has fewer zeros";
}

}  // namespace
}  // namespace gradtune::test
