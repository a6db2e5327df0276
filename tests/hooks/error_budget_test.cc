// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// Tests the guard of compression in real processes. Gradients of one rank change their nature, and all ranks return
// to the baseline in the same step. Residuals are paid back, and nothing is lost.
#include <gmock/gmock.h>

#include "engine/compress/compressor.h"
#include "engine/exec/draining.h"
#include "tests/hooks/jobs.h"
#include "tests/hooks/ranks.h"
#include "tests/temp_folder.h"
#include "tuner/files/file_io.h"
#include "tuner/files/journal_reader.h"
#include "tuner/files/strategy_file.h"

namespace gradtune::test {
namespace {

using testing::AllOf;
using testing::Contains;
using testing::HasSubstr;
using testing::Not;

constexpr int64_t kChange = 60, kSteps = 160;

// Its gradients are the ones passed to its loss.
struct GivenImpl : torch::nn::Module {
  GivenImpl() { weight = register_parameter("weight", torch::zeros({80, 100})); }
  torch::Tensor loss(const torch::Tensor& gradient) { return (weight * gradient).sum(); }
  torch::Tensor weight;
};
TORCH_MODULE(Given);

// One element in fifty is large; from kChange on, on the last rank, all are.
torch::Tensor gradient_of(int rank, int size, int64_t step) {
  torch::manual_seed(1'000 * step + rank);
  const torch::Tensor values = torch::randn({80, 100});
  if (step >= kChange && rank + 1 == size) return values;
  return values * (torch::rand({80, 100}) < 0.02).to(torch::kFloat);
}

// Rank 0 writes a strategy file with that option for all buckets.
void write_strategy(const Rank& rank, const c10::intrusive_ptr<c10d::ProcessGroup>& group, const std::string& file,
                    const std::string& option) {
  Given model;
  torch::optim::SGD sgd(model->parameters(), 0.0);
  auto optimizer = wrap(sgd, *model, group, quiet({.fidelity = "lossy", .tuning_budget = 0}));
  model->loss(gradient_of(rank.rank, rank.size, 0)).backward();
  optimizer.step();
  optimizer.export_strategy(file);
  if (rank.rank == 0) {
    const auto known = compress::known_traits();
    auto read = tuner::parse_strategy(tuner::read_file(file, 1 << 20).value(), known).value();
    for (core::Bucket& bucket : read.strategy.buckets) bucket.option = core::parse_option(option, known).value();
    read.strategy.order = core::staggered_order(read.strategy.buckets);
    ASSERT_TRUE(tuner::write_file_atomically(file, tuner::to_json(read)).ok());
  }
  group->barrier()->wait();
}

void fall_back(const Rank& rank, const std::string& file, const std::string& journal) {
  auto group = make_group();  // one group: a second store on the same port would meet the rest of the first
  write_strategy(rank, group, file, "topk:0.05: encode@device all_gather decode@device");
  Given model;
  torch::optim::SGD sgd(model->parameters(), 0.0);
  {
    auto optimizer = wrap(
        sgd, *model, group,
        quiet({.fidelity = "lossy", .error_budget = 0.5, .strategy = file, .tuning_budget = 0, .journal = journal}));
    torch::Tensor given = torch::zeros({80, 100}, torch::kDouble), applied = given.clone();
    std::vector<int64_t> epochs;
    for (int64_t step = 0; step < kSteps; ++step) {
      optimizer.zero_grad();
      model->loss(gradient_of(rank.rank, rank.size, step)).backward();
      const torch::Tensor average = model->weight.grad().to(torch::kDouble);
      double mean = 0;
      for (int r = 0; r < rank.size; ++r) {
        const torch::Tensor gradient = gradient_of(r, rank.size, step).to(torch::kDouble);
        given += gradient;
        mean += gradient.norm().item<double>() / rank.size;
      }
      applied += rank.size * average;
      if (!epochs.empty() && epochs.back() > 1) {
        EXPECT_LE(average.norm().item<double>(), (1 + exec::kDrainShare) * mean * (1 + 1e-5)) << "step " << step;
      }
      optimizer.step();
      epochs.push_back(optimizer.progress().epoch);
    }
    EXPECT_EQ(difference_from_rank0(torch::tensor(epochs), *group), 0) << "in the same step";
    const auto changed = std::find_if(epochs.begin(), epochs.end(), [](int64_t epoch) { return epoch > 1; });
    EXPECT_GE(changed - epochs.begin(), kChange + 16);
    EXPECT_LE(changed - epochs.begin(), kChange + 16 + 5);
    EXPECT_EQ(epochs.back(), 2);
    EXPECT_THAT(optimizer.progress().strategy, HasSubstr("all_reduce"));
    // A lost residual would be as large as several gradients.
    EXPECT_LE((given - applied).abs().max().item<double>(), 0.2) << "all that was given was applied, rounded to bf16";
  }
  if (rank.rank != 0) return;
  const auto read = tuner::read_journal(journal);
  ASSERT_TRUE(read.ok()) << read.error().message;
  EXPECT_THAT(read.value().decided, Contains(HasSubstr("over error budget")).Times(1));
  EXPECT_THAT(tuner::decide_again(read.value()).value(), Contains(HasSubstr("over error budget")).Times(1));
}

TEST(ErrorBudget, APinnedStrategyOverItsBudgetGivesWayOnAllRanksInTheSameStep) {
  const TempFolder folder;
  run_ranks(3, [&](const Rank& rank) { fall_back(rank, folder.path("strategy.json"), folder.path("journal.jsonl")); });
}

TEST(ErrorBudget, OfATuningJobIsKeptInItsTrials) {
  const TempFolder folder;
  const std::string journal = folder.path("journal.jsonl");
  const auto train = [&](const Rank& rank) {
    auto group = make_group();
    auto model = make_mlp(1, /*width=*/256);
    torch::optim::SGD sgd(model->parameters(), 0.01);
    // No top-k of random gradients loses so little.
    auto optimizer = wrap(sgd, *model, group,
                          quiet({.fidelity = "lossy",
                                 .compressors = std::vector<std::string>{"none", "topk:0.01"},
                                 .error_budget = 0.1,
                                 .tuning_budget = 150,
                                 .journal = journal}));
    for (int step = 0; step < 200; ++step) {
      optimizer.zero_grad();
      loss_of(model, make_data(rank.rank, step)).backward();
      optimizer.step();
    }
    EXPECT_EQ(optimizer.progress().strategy.find("topk"), std::string::npos) << optimizer.progress().strategy;
    for (const torch::Tensor& p : model->parameters()) EXPECT_EQ(difference_from_rank0(p, *group), 0);
  };
  // On a slow link top-k would be by far the fastest.
  run_ranks(2, train, {.environment = {{"GRADTUNE_PACING_MBIT", "25"}}});
  const auto read = tuner::read_journal(journal);
  ASSERT_TRUE(read.ok()) << read.error().message;
  EXPECT_THAT(read.value().decided, Contains(HasSubstr("over error budget")));
}

// The decisions for the default list of a job with Adam, on a link so slow that fewer bits are clearly faster. The
// function gives the rank's gradients in a step. The last entry is the strategy in force at the end.
std::vector<std::string> decided_by_default(const std::function<torch::Tensor()>& gradient) {
  const TempFolder folder;
  const std::string journal = folder.path("journal.jsonl");
  run_ranks(2,
            [&](const Rank& rank) {
              auto group = make_group();
              Given model;
              torch::optim::AdamW adam(model->parameters(), 0.01);
              auto optimizer = wrap(adam, *model, group, quiet({.fidelity = "lossy", .journal = journal}));
              for (int step = 0; step < 420; ++step) {
                torch::manual_seed(1'000 * step + rank.rank);
                optimizer.zero_grad();
                model->loss(gradient()).backward();
                optimizer.step();
              }
              EXPECT_EQ(difference_from_rank0(model->weight, *group), 0);
            },
            {.environment = {{"GRADTUNE_PACING_MBIT", "5"}}});
  auto read = tuner::read_journal(journal);
  EXPECT_TRUE(read.ok());
  if (!read) return {};
  EXPECT_EQ(read.value().job.tuning.optimizers, core::OptimizerFamily::adaptive);
  return read.value().decided;
}

constexpr const char *kFourBits = "int4", *kOver = "over error budget";

TEST(ErrorBudget, GradientsLikeThoseOfTrainingsMayBeSentInFourBits) {
  const auto decided = decided_by_default([] { return torch::randn({80, 100}); });
  EXPECT_THAT(decided,
              Contains(AllOf(HasSubstr("\"measure\""), HasSubstr(kFourBits), Not(HasSubstr("\"value\":0.0")))));
  EXPECT_THAT(decided, Not(Contains(HasSubstr(kOver))));
}

// One element in 64 is so much larger than the others that 4 bits only just round these to 0, every second time. The
// loss is more than twice that of any training.
TEST(ErrorBudget, GradientsThatFourBitsDoNotSuitAreNotSentInThem) {
  const auto decided = decided_by_default([] {
    const torch::Tensor signs = torch::randint(0, 2, {80, 100}) * 2 - 1;
    return torch::where(torch::arange(8'000).view({80, 100}) % 64 == 0, signs.to(torch::kFloat), 0.0705 * signs);
  });
  EXPECT_THAT(decided, Contains(AllOf(HasSubstr(kOver), HasSubstr(kFourBits), HasSubstr("allowed 0."))));
  EXPECT_THAT(decided, Not(Contains(AllOf(HasSubstr("\"commit\""), HasSubstr(kFourBits)))));
  EXPECT_THAT(decided, Contains(HasSubstr("\"race won\""))) << "with more bits";
}

// Two parameters, each in its own bucket.
struct TwoGivenImpl : torch::nn::Module {
  TwoGivenImpl() {
    first = register_parameter("first", torch::zeros({100, 200}));
    second = register_parameter("second", torch::zeros({40, 50}));
  }
  torch::Tensor loss(const torch::Tensor& to_first, const torch::Tensor& to_second) {
    return (first * to_first).sum() + (second * to_second).sum();
  }
  torch::Tensor first, second;
};
TORCH_MODULE(TwoGiven);

// From that step on, all elements of the second parameter are large on the last rank.
void backward(TwoGiven& model, const Rank& rank, int64_t step, int64_t change) {
  torch::manual_seed(1'000 * step + rank.rank);
  const auto sparse = [](const torch::Tensor& values) {
    return values * (torch::rand(values.sizes()) < 0.02).to(torch::kFloat);
  };
  const torch::Tensor first = sparse(torch::randn({100, 200})), second = torch::randn({40, 50});
  model->loss(first, step >= change && rank.rank + 1 == rank.size ? second : sparse(second)).backward();
}

void write_two_buckets(const Rank& rank, const c10::intrusive_ptr<c10d::ProcessGroup>& group, const std::string& file) {
  TwoGiven model;
  torch::optim::SGD sgd(model->parameters(), 0.0);
  auto optimizer = wrap(sgd, *model, group, quiet({.fidelity = "lossy", .tuning_budget = 0}));
  backward(model, rank, 0, 1);
  optimizer.step();
  optimizer.export_strategy(file);
  if (rank.rank == 0) {
    const auto known = compress::known_traits();
    auto read = tuner::parse_strategy(tuner::read_file(file, 1 << 20).value(), known).value();
    const core::Option option = core::parse_option("topk:0.05: encode@device all_gather decode@device", known).value();
    read.strategy.buckets.clear();
    for (size_t t = 0; t < read.tensors.size(); ++t) {
      read.strategy.buckets.push_back({{{static_cast<int32_t>(t), 0, t == 0 ? 20'000 : 2'000}}, option});
    }
    core::set_default_flow(read.strategy);
    ASSERT_TRUE(tuner::write_file_atomically(file, tuner::to_json(read)).ok());
  }
  group->barrier()->wait();
}

void replace_one_bucket(const Rank& rank, const std::string& file, const std::string& journal) {
  constexpr int64_t kBefore = 260,
                    kAfter = 400;  // more than it takes to commit the imported strategy, and its replacement
  auto group = make_group();
  write_two_buckets(rank, group, file);
  TwoGiven model;
  torch::optim::SGD sgd(model->parameters(), 0.0);
  {
    auto optimizer = wrap(
        sgd, *model, group,
        quiet({.fidelity = "lossy", .error_budget = 0.5, .strategy = file, .tuning_budget = 250, .journal = journal}));
    std::vector<int64_t> epochs;
    for (int64_t step = 0; step < kBefore + kAfter; ++step) {
      optimizer.zero_grad();
      backward(model, rank, step, kBefore);
      optimizer.step();
      epochs.push_back(optimizer.progress().epoch);
    }
    EXPECT_EQ(difference_from_rank0(torch::tensor(epochs), *group), 0) << "in the same steps";
    EXPECT_THAT(optimizer.progress().strategy, HasSubstr("as the baseline: bucket 1"));
    if (rank.rank == 0) {
      EXPECT_TRUE(optimizer.result().committed);
      EXPECT_GT(optimizer.result().gain, 0.2);
      EXPECT_THAT(optimizer.result().description, HasSubstr("topk:0.05"));
    }
  }
  if (rank.rank != 0) return;
  const auto read = tuner::read_journal(journal);
  ASSERT_TRUE(read.ok()) << read.error().message;
  for (const char* what : {"over error budget", "\"repair\""}) {
    EXPECT_THAT(read.value().decided, Contains(HasSubstr(what)).Times(1)) << what;
  }
  EXPECT_THAT(read.value().decided, Contains(HasSubstr("\"commit\"")).Times(2));
  EXPECT_EQ(tuner::decide_again(read.value()).value(), read.value().decided);
}

// The link is slow enough to make the gain clear.
TEST(ErrorBudget, OfACommittedStrategyTheBucketThatChangedIsReplaced) {
  const TempFolder folder;
  const auto body = [&](const Rank& rank) {
    replace_one_bucket(rank, folder.path("strategy.json"), folder.path("journal.jsonl"));
  };
  run_ranks(2, body, {.environment = {{"GRADTUNE_PACING_MBIT", "25"}}});
}

}  // namespace
}  // namespace gradtune::test
