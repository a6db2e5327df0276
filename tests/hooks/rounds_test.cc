// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// Tests training in rounds, beside the same training computed on one rank.
#include <gmock/gmock.h>

#include <chrono>
#include <cmath>
#include <functional>
#include <limits>
#include <memory>
#include <numeric>
#include <optional>
#include <thread>
#include <vector>

#include "gradtune/rounds.h"
#include "hooks/rounds.h"
#include "hooks/rounds_file.h"
#include "hooks/session.h"
#include "hooks/trained_by.h"
#include "tests/hooks/jobs.h"
#include "tests/hooks/ranks.h"
#include "tests/temp_folder.h"
#include "tuner/files/journal_reader.h"

namespace gradtune::test {
namespace {

using testing::HasSubstr;

torch::optim::AdamW make_inner(torch::nn::Sequential& model) {
  return torch::optim::AdamW(model->parameters(), torch::optim::AdamWOptions(0.01));
}

// A rank's own update.
void update(torch::nn::Sequential& model, torch::optim::Optimizer& inner, int rank, int64_t step) {
  inner.zero_grad();
  loss_of(model, make_data(rank, step)).backward();
  inner.step();
}

// The training of all ranks, on one of them, with torch's own SGD as the outer step. Exchanges are of all parameters,
// or of those with such numbers.
class Expected {
 public:
  using Numbers = std::vector<size_t>;

  explicit Expected(int ranks)
      : outer_(anchors_->parameters(), torch::optim::SGDOptions(0.8).momentum(0.3).nesterov(true)) {
    for (int r = 0; r < ranks; ++r) {
      models_.push_back(make_mlp(1));
      inner_.push_back(std::make_unique<torch::optim::AdamW>(make_inner(models_.back())));
    }
  }

  void update_all(int64_t step) {
    for (size_t r = 0; r < models_.size(); ++r) update(models_[r], *inner_[r], static_cast<int>(r), step);
  }

  void begin_exchange(const std::optional<Numbers>& of = {}) {
    const torch::NoGradGuard no_grad;
    numbers_ = of ? *of : all();
    const auto anchors = anchors_->parameters();
    anchors_->zero_grad(/*set_to_none=*/true);
    exchanged_.clear();
    for (const size_t p : numbers_) {
      torch::Tensor sum = torch::zeros_like(anchors[p]);
      for (torch::nn::Sequential& model : models_) {
        const torch::Tensor parameter = model->parameters()[p];
        sum += anchors[p] - parameter;
        exchanged_.push_back(parameter.detach().clone());
      }
      anchors[p].mutable_grad() = sum / static_cast<double>(models_.size());
    }
  }

  // Updates since the exchange began are added to its result.
  void complete() {
    const torch::NoGradGuard no_grad;
    outer_.step();
    size_t at = 0;
    for (const size_t p : numbers_) {
      for (torch::nn::Sequential& model : models_) {
        const torch::Tensor parameter = model->parameters()[p];
        parameter.copy_(anchors_->parameters()[p] + (parameter - exchanged_[at++]));
      }
    }
  }

  void end_round(const std::optional<Numbers>& of = {}) {
    begin_exchange(of);
    complete();
  }

  std::vector<torch::Tensor> parameters(int rank) const { return models_[static_cast<size_t>(rank)]->parameters(); }

 private:
  Numbers all() const {
    Numbers numbers(anchors_->parameters().size());
    std::iota(numbers.begin(), numbers.end(), size_t{0});
    return numbers;
  }

  torch::nn::Sequential anchors_ = make_mlp(1);
  torch::optim::SGD outer_;
  Numbers numbers_;  // of the exchange under way
  std::vector<torch::Tensor> exchanged_;
  std::vector<torch::nn::Sequential> models_;
  std::vector<std::unique_ptr<torch::optim::AdamW>> inner_;
};

void expect_near(const std::vector<torch::Tensor>& actual, const std::vector<torch::Tensor>& expected, int64_t step) {
  for (size_t p = 0; p < actual.size(); ++p) {
    ASSERT_TRUE(torch::allclose(actual[p], expected[p], /*rtol=*/1e-4, /*atol=*/1e-6))
        << "parameter " << p << ", step " << step << ": " << (actual[p] - expected[p]).abs().max().item<float>();
  }
}

// The sessions of a job in rounds of so many updates, one for each fragment.
class Job {
 public:
  Job(const c10::intrusive_ptr<c10d::ProcessGroup>& group, const Options& options, int64_t updates, int64_t delay = 0,
      int64_t fragments = 1) {
    for (int64_t f = 0; f < fragments; ++f) {
      const Fragment fragment{.number = f, .count = fragments};
      sessions_.push_back(std::make_unique<Session>(trained_by({&inner_}, *model_, Arrival::handed_over, fragment),
                                                    group, quiet(options)));
    }
    const tuner::UpdatesARound allowed{.least = updates, .most = updates, .delay = delay, .fragments = fragments};
    rounds_ =
        std::make_unique<Rounds>(sessions_, OuterStep::Rates{}, tuner::RoundLength(allowed, {.updates = updates}));
  }

  bool step(int rank, int64_t step) {
    update(model_, inner_, rank, step);
    return rounds_->end_update();
  }
  std::vector<torch::Tensor> parameters() const { return model_->parameters(); }
  // The numbers of a fragment's parameters.
  Expected::Numbers numbers_in(size_t fragment) const {
    Expected::Numbers numbers;
    for (const torch::Tensor& in : sessions_[fragment]->trained()) {
      for (size_t p = 0; p < parameters().size(); ++p) {
        if (parameters()[p].is_same(in)) numbers.push_back(p);
      }
    }
    return numbers;
  }
  Rounds& rounds() { return *rounds_; }

 private:
  torch::nn::Sequential model_ = make_mlp(1);
  torch::optim::AdamW inner_ = make_inner(model_);
  std::vector<std::unique_ptr<Session>> sessions_;
  std::unique_ptr<Rounds> rounds_;
};

// Rank 1 takes three times as long for an update, and each update adds 1 on rank 0 and 2 on rank 1.
TEST(Rounds, AFasterRankMakesMoreUpdatesAndWeighsMore) {
  run_ranks(2, [](const Rank& rank) {
    const auto group = make_group();
    torch::nn::Sequential model = make_mlp(1);
    torch::optim::AdamW inner = make_inner(model);
    const auto session = std::make_unique<Session>(trained_by({&inner}, *model, Arrival::handed_over), group,
                                                   quiet({.fidelity = "exact", .tuning_budget = 0}));
    const tuner::RoundLength length({.least = 4, .most = 40}, {.updates = 4});
    Rounds rounds({&session, 1}, {.lr = 1, .momentum = 0}, length, /*uneven=*/true);
    const auto value = [&] { return model->parameters().front().flatten()[0].item<double>(); };
    bool was_faster = false;
    const auto train = [&](const std::function<bool(int64_t)>& ended) {
      const double before = value();
      int64_t own = 0;
      do {
        std::this_thread::sleep_for(std::chrono::milliseconds(rank.rank == 0 ? 10 : 30));
        const torch::NoGradGuard no_grad;
        for (torch::Tensor& parameter : model->parameters()) parameter.add_(1 + rank.rank);
      } while (!ended(++own));
      std::vector<torch::Tensor> updates = {torch::zeros({2}, torch::kDouble)};
      updates[0][rank.rank] = static_cast<double>(own);
      group->allreduce(updates)->wait();
      const double n0 = updates[0][0].item<double>(), n1 = updates[0][1].item<double>();
      EXPECT_NEAR(value() - before, (n0 * n0 + 2 * n1 * n1) / (n0 + n1), 1e-3) << n0 << " and " << n1 << " updates";
      EXPECT_GE(n1, 1);
      was_faster = was_faster || n0 >= n1 + 2;
    };
    for (int round = 0; round < 3 * static_cast<int>(tuner::SiteSpeed::kRounds); ++round) {
      train([&](int64_t) { return rounds.end_update(); });
    }
    EXPECT_TRUE(was_faster);
    train([&](int64_t own) {  // a round that ends early, with one and two updates
      EXPECT_FALSE(rounds.end_update());
      return own > rank.rank && rounds.end_round();
    });
  });
}

TEST(Rounds, EqualTheSameTrainingOnOneRank) {
  for (const int size : {1, 2, 4}) {
    run_ranks(
        size, +[](const Rank& rank) {
          Job job(make_group(), {.fidelity = "exact", .tuning_budget = 60}, /*updates=*/4);
          Expected expected(rank.size);
          for (int64_t step = 0; step < 120; ++step) {  // tuned meanwhile
            const bool ended = job.step(rank.rank, step);
            expected.update_all(step);
            ASSERT_EQ(ended, job.rounds().progress().updates == 0);
            if (ended || (step == 50 && job.rounds().end_round())) expected.end_round();
            expect_near(job.parameters(), expected.parameters(rank.rank), step);
          }
          EXPECT_EQ(job.rounds().progress().rounds, 30);
        });
  }
}

TEST(Rounds, UpdatesGoOnWhileADelayedExchangeIsUnderWay) {
  run_ranks(2, [](const Rank& rank) {
    constexpr int64_t kUpdates = 5, kDelay = 2;
    Job job(make_group(), {.fidelity = "exact", .tuning_budget = 60}, kUpdates, kDelay);
    Expected expected(rank.size);
    for (int64_t step = 0; step < 100; ++step) {
      const bool completed = job.step(rank.rank, step);
      expected.update_all(step);
      if (step % kUpdates == kUpdates - 1) expected.begin_exchange();
      ASSERT_EQ(completed, step > kUpdates && step % kUpdates == kDelay - 1) << step;
      if (completed) expected.complete();
      expect_near(job.parameters(), expected.parameters(rank.rank), step);
    }
    EXPECT_TRUE(job.rounds().end_round());  // the exchange that began in the last step
    expected.complete();
    expect_near(job.parameters(), expected.parameters(rank.rank), 100);
    EXPECT_FALSE(job.rounds().end_round());
  });
}

// Fragments are exchanged after 2, 4 and 6 updates of 6, and arrive one or two updates later if there is a delay.
TEST(Rounds, FragmentsAreExchangedOneAfterTheOther) {
  run_ranks(2, [](const Rank& rank) {
    for (const int64_t delay : {0, 1, 2}) {
      constexpr int64_t kUpdates = 6, kFragments = 3, kApart = kUpdates / kFragments;
      Job job(make_group(), {.fidelity = "exact", .tuning_budget = 30}, kUpdates, delay, kFragments);
      Expected expected(rank.size);
      const auto at = [&](int64_t step) { return job.numbers_in(static_cast<size_t>(step / kApart % kFragments)); };
      for (int64_t step = 0; step < 120; ++step) {
        const bool ended = job.step(rank.rank, step);
        expected.update_all(step);
        if (delay > 0 && step >= kApart && (step + 1 - delay) % kApart == 0) expected.complete();
        if ((step + 1) % kApart == 0) delay == 0 ? expected.end_round(at(step)) : expected.begin_exchange(at(step));
        ASSERT_EQ(ended, step + 1 > delay && (step + 1 - delay) % kUpdates == 0) << step;
        expect_near(job.parameters(), expected.parameters(rank.rank), step);
      }
      EXPECT_EQ(job.rounds().progress().rounds, delay == 0 ? 20 : 19);
      EXPECT_TRUE(job.rounds().end_round());
      if (delay > 0) expected.complete();
      expected.end_round();
      expect_near(job.parameters(), expected.parameters(rank.rank), 120);
      EXPECT_FALSE(job.rounds().end_round());
    }
  });
}

TEST(Rounds, ParametersAreEqualWhenARoundEnds) {
  run_ranks(3, [](const Rank& rank) {
    const auto group = make_group();
    Job job(group, {.fidelity = "lossy", .compressors = std::vector<std::string>{"int4packed"}, .lossy_after = 0}, 3);
    for (int64_t step = 0; step < 90; ++step) {
      if (!job.step(rank.rank, step)) continue;
      for (const torch::Tensor& p : job.parameters()) ASSERT_EQ(difference_from_rank0(p, *group), 0) << step;
    }
  });
}

TEST(Rounds, ARoundWithANanIsLostOnAllRanks) {
  run_ranks(2, [](const Rank& rank) {
    const auto group = make_group();
    Job job(group, {.fidelity = "half"}, 2);
    int64_t step = 0;
    while (job.rounds().progress().rounds < 5) job.step(rank.rank, step++);
    std::vector<torch::Tensor> before;
    for (const torch::Tensor& p : job.parameters()) before.push_back(p.detach().clone());
    {
      const torch::NoGradGuard no_grad;
      if (rank.rank == 1) job.parameters()[1][0].fill_(std::numeric_limits<float>::quiet_NaN());
    }
    job.step(rank.rank, step++);
    ASSERT_TRUE(job.step(rank.rank, step++));
    for (size_t p = 0; p < before.size(); ++p) EXPECT_TRUE(torch::equal(job.parameters()[p], before[p])) << p;
  });
}

// Each fragment goes back to its own last exchange, also one that was finite.
TEST(Rounds, ANanInOneFragmentIsLostInAll) {
  run_ranks(2, [](const Rank& rank) {
    Job job(make_group(), {.fidelity = "half"}, /*updates=*/4, /*delay=*/0, /*fragments=*/2);
    std::vector<torch::Tensor> exchanged(job.parameters().size());
    const auto note = [&](size_t fragment) {
      for (const size_t p : job.numbers_in(fragment)) exchanged[p] = job.parameters()[p].detach().clone();
    };
    int64_t step = 0;
    for (; step < 20; ++step) {
      job.step(rank.rank, step);
      if (step % 2 == 1) note(static_cast<size_t>(step / 2 % 2));
    }
    job.step(rank.rank, step++);
    const torch::NoGradGuard no_grad;
    if (rank.rank == 1) {
      const size_t first = job.numbers_in(0).front();
      job.parameters()[first][0].fill_(std::numeric_limits<float>::quiet_NaN());
    }
    {
      const torch::AutoGradMode enable(true);
      job.step(rank.rank, step++);
    }
    for (size_t p = 0; p < exchanged.size(); ++p) EXPECT_TRUE(torch::equal(job.parameters()[p], exchanged[p])) << p;
  });
}

TEST(OuterStep, TakesLowPrecisionParametersWithAnchorsInFp32) {
  const torch::NoGradGuard no_grad;
  torch::Tensor parameter = torch::full({4}, 1.0, torch::kBFloat16);
  OuterStep outer({parameter}, {.lr = 0.5, .momentum = 0});
  const std::vector<torch::Tensor> change{torch::full({4}, 1.0 / 1024, torch::kBFloat16)};
  for (int step = 0; step < 32; ++step) EXPECT_TRUE(outer.step(change));  // each is below half a unit of bf16
  EXPECT_EQ(parameter[0].item<float>(), 1 - 32 * 0.5F / 1024);
}

TEST(OuterStep, StateOfAnotherModelIsRefused) {
  OuterStep outer({torch::zeros({4}), torch::zeros({2, 3})}, {});
  EXPECT_THAT(message_of([&] { outer.restore(std::vector<torch::Tensor>{torch::zeros({4})}); }),
              HasSubstr("has 1 tensors; allowed is one for each"));
  EXPECT_THAT(message_of([&] {
                outer.restore(std::vector<torch::Tensor>{torch::zeros({4}), torch::zeros({3, 2})});
              }),
              HasSubstr("trained parameter 1 has another shape"));
}

// --- rounds() --------------------------------------------------------------------------------------------------------

// A model with an optimizer in rounds.
struct Wrapped {
  Wrapped(const c10::intrusive_ptr<c10d::ProcessGroup>& group, const RoundOptions& of_rounds, const Options& options)
      : optimizer(rounds(inner, *model, group, of_rounds, quiet(options))) {}

  void step(int rank, int64_t step) {
    optimizer.zero_grad();
    loss_of(model, make_data(rank, step)).backward();
    optimizer.step();
  }

  torch::nn::Sequential model = make_mlp(1);
  torch::optim::AdamW inner = make_inner(model);
  RoundsOptimizer optimizer;
};

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

void train(Wrapped& job, int rank, int64_t from, int64_t steps) {
  for (int64_t step = from; step < from + steps; ++step) job.step(rank, step);
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
                HasSubstr("is of rounds in 2 fragments, and this job has fragments 3; allowed is fragments 2"));
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

TEST(RoundsFile, AFileThatIsNoneIsNamed) {
  const TempFolder folder;
  const std::string name = folder.path("");
  EXPECT_THAT(message_of([&] { load_rounds(name); }), HasSubstr("rounds.pt"));
  save_rounds(name, {.session_step = 7,
                     .dense_steps = 8,
                     .rounds = 9,
                     .round = {.updates = 3, .delay = 1},
                     .momenta = {torch::ones({2})}});
  const SavedRounds saved = load_rounds(name);
  EXPECT_EQ(saved.session_step, 7);
  EXPECT_EQ(saved.round, (tuner::RoundShape{3, 1}));
  EXPECT_TRUE(torch::equal(saved.momenta.at(0), torch::ones({2})));
  torch::save(torch::ones({2}), name + "/rounds.pt");
  EXPECT_THAT(message_of([&] { load_rounds(name); }), HasSubstr("rounds.pt holds no state of rounds"));
}

}  // namespace
}  // namespace gradtune::test
