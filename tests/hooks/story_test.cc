// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// A job tells one story: the lines of rank 0 during training and at the end, the results of all ranks, and the
// report of its journal, even of a journal that ends there.
#include <gmock/gmock.h>

#include <optional>
#include <sstream>

#include "tests/hooks/jobs.h"
#include "tests/hooks/ranks.h"
#include "tests/temp_folder.h"
#include "tuner/files/journal_reader.h"
#include "tuner/report/summary.h"

namespace gradtune::test {
namespace {

using testing::Contains;
using testing::HasSubstr;
using testing::StartsWith;

// Its gradients are the ones passed to its loss.
struct GivenImpl : torch::nn::Module {
  GivenImpl() { weight = register_parameter("weight", torch::zeros({80, 100})); }
  torch::Tensor loss(const torch::Tensor& gradient) { return (weight * gradient).sum(); }
  torch::Tensor weight;
};
TORCH_MODULE(Given);

// One element in fifty is large, or all are.
torch::Tensor gradient_of(int rank, int64_t step, bool is_dense) {
  torch::manual_seed(1'000 * step + rank);
  const torch::Tensor values = torch::randn({80, 100});
  return is_dense ? values : values * (torch::rand({80, 100}) < 0.02).to(torch::kFloat);
}

std::vector<std::string> lines_of(const std::string& text) {
  std::vector<std::string> lines;
  std::istringstream stream(text);
  for (std::string line; std::getline(stream, line);) lines.push_back(line);
  return lines;
}

std::string report_of(const std::string& journal) {
  return tuner::story(tuner::make_report(tuner::read_journal(journal).value()).value());
}

class Job {
 public:
  Job(const Rank& rank, const c10::intrusive_ptr<c10d::ProcessGroup>& group, Options options)
      : rank_(rank), group_(group), journal_(options.journal.value()) {
    if (rank_.rank == 0) testing::internal::CaptureStderr();
    options = quiet(std::move(options));
    options.quiet = false;
    optimizer_.emplace(wrap(sgd_, *model_, group, options));
  }

  void step(bool is_dense) {
    optimizer_->zero_grad();
    model_->loss(gradient_of(rank_.rank, step_++, is_dense)).backward();
    optimizer_->step();
    const Optimizer::Result result = optimizer_->result();
    const std::string all = result.story + result.strategy + result.description + std::to_string(result.gain) +
                            std::to_string(result.steps);
    const auto hash = static_cast<int64_t>(std::hash<std::string>()(all) >> 16);
    EXPECT_EQ(difference_from_rank0(torch::tensor({hash}), *group_), 0) << "step " << step_ << ": " << all;
  }

  // Trains until the story begins with these words on all ranks, which they see in the same step, and a few steps
  // more.
  void train_until(const std::string& words, bool is_dense, int most_steps = 1'200) {
    for (int more = 0; more < most_steps && result().story.find(words) == std::string::npos; ++more) step(is_dense);
    EXPECT_THAT(result().story, HasSubstr(words));
    for (int more = 0; more < 3; ++more) step(is_dense);
    // As if it had been killed now.
    if (rank_.rank == 0) {
      EXPECT_EQ(report_of(journal_), result().story);
    }
    stories_.push_back(result().story);
  }

  void end() {
    const std::string story = result().story;
    optimizer_.reset();
    if (rank_.rank != 0) return;
    const std::vector<std::string> lines = lines_of(testing::internal::GetCapturedStderr());
    ASSERT_FALSE(lines.empty());
    EXPECT_THAT(lines.back(), StartsWith("gradtune: " + story));
    for (const std::string& each : stories_) {
      EXPECT_THAT(lines, Contains(HasSubstr(": " + each))) << "as it happened";
    }
    EXPECT_EQ(report_of(journal_), story);
  }

  Optimizer::Result result() const { return optimizer_->result(); }

 private:
  const Rank rank_;
  const c10::intrusive_ptr<c10d::ProcessGroup> group_;
  const std::string journal_;
  Given model_;
  torch::optim::SGD sgd_{model_->parameters(), 0.0};
  std::optional<Optimizer> optimizer_;
  int64_t step_ = 0;
  std::vector<std::string> stories_;
};

// The link is slow enough to make the gain clear, also with compressors that a sanitizer slows down.
// A budget that the user set is a limit.
TEST(Story, OfACommitADropAndWhatFollowsIsTheSameEverywhere) {
  const TempFolder folder;
  const auto body = [&](const Rank& rank) {
    Job job(rank, make_group(),
            {.fidelity = "lossy",
             .compressors = std::vector<std::string>{"none", "topk:0.05"},
             .error_budget = 0.5,
             .journal = folder.path("journal.jsonl")});
    EXPECT_THAT(job.result().story, StartsWith("nothing is confirmed yet, "));
    job.train_until("committed ", /*is_dense=*/false);
    EXPECT_TRUE(job.result().committed);
    EXPECT_GT(job.result().gain_low, 0);
    EXPECT_THAT(job.result().strategy, HasSubstr("topk:0.05"));
    job.train_until(" was dropped in step ", /*is_dense=*/true);
    EXPECT_FALSE(job.result().committed);
    EXPECT_THAT(job.result().story, HasSubstr("its compression loses more than it may (bucket "));
    job.end();
  };
  run_ranks(2, body, {.environment = {{"GRADTUNE_PACING_MBIT", kSanitizing ? "6" : "12"}}});
}

TEST(Story, OfABaselineThatStaysIsTheSameEverywhere) {
  const TempFolder folder;
  run_ranks(2, [&](const Rank& rank) {
    Job job(rank, make_group(), {.tuning_budget = 40, .journal = folder.path("journal.jsonl")});
    job.train_until("the baseline stays, ", /*is_dense=*/false);
    EXPECT_TRUE(job.result().decided);
    EXPECT_GT(job.result().steps, 0);
    job.end();
  });
}

TEST(Story, OfAPinnedStrategyIsTheSameEverywhere) {
  const TempFolder folder;
  run_ranks(2, [&](const Rank& rank) {
    Job job(rank, make_group(), {.tuning_budget = 0, .journal = folder.path("journal.jsonl")});
    for (int step = 0; step < 5; ++step) job.step(/*is_dense=*/false);
    EXPECT_EQ(job.result().story, "all_reduce is pinned, and nothing is tuned");
    EXPECT_FALSE(job.result().decided);
    job.end();
  });
}

TEST(Story, OfOneRankSaysThatItSendsNothing) {
  const TempFolder folder;
  run_ranks(1, [&](const Rank& rank) {
    Job job(rank, make_group(), {.journal = folder.path("journal.jsonl")});
    job.train_until("one rank sends nothing", /*is_dense=*/false);
    EXPECT_THAT(job.result().story, StartsWith("the baseline stays, "));
    job.end();
  });
}

}  // namespace
}  // namespace gradtune::test
