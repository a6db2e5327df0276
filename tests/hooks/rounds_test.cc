// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// Tests training in rounds, beside the same training computed on one rank.
#include <gmock/gmock.h>

#include <chrono>
#include <functional>
#include <limits>
#include <memory>
#include <numeric>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "hooks/lost_rounds.h"
#include "hooks/rounds.h"
#include "hooks/session.h"
#include "hooks/trained_by.h"
#include "tests/hooks/ranks.h"
#include "tests/hooks/rounds_jobs.h"

namespace gradtune::test {
namespace {

using testing::HasSubstr;

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
      for (const size_t fragment : {0, 1}) expected.end_round(job.numbers_in(fragment));  // the last one has no updates
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

// Rank 1 skips an update, as one whose gradients overflowed does, and rank 0 has a batch more.
TEST(Rounds, RanksThatMadeDifferentNumbersOfUpdatesEndARoundTogether) {
  run_ranks(2, [](const Rank& rank) {
    const auto group = make_group();
    for (const auto& [fragments, delay] : {std::pair<int64_t, int64_t>{1, 0}, {1, 2}, {3, 0}, {3, 1}}) {
      Job job(group, {.fidelity = "exact", .tuning_budget = 60}, /*updates=*/6, delay, fragments);
      for (int64_t epoch = 0; epoch < 6; ++epoch) {
        // One rank may end an exchange that the other has not begun.
        const int64_t batches = 4 + 3 * epoch;
        for (int64_t step = 0; step < batches + (rank.rank == 0 ? 1 : 0); ++step) {
          if (rank.rank == 1 && step == 2) continue;
          job.step(rank.rank, step);
        }
        EXPECT_TRUE(job.rounds().end_round());
        for (const torch::Tensor& p : job.parameters()) ASSERT_EQ(difference_from_rank0(p, *group), 0) << epoch;
        const auto rounds = torch::tensor(job.rounds().progress().rounds);
        EXPECT_EQ(difference_from_rank0(rounds, *group), 0);
        std::vector<torch::Tensor> before;
        for (const torch::Tensor& p : job.parameters()) before.push_back(p.detach().clone());
        EXPECT_FALSE(job.rounds().end_round());
        EXPECT_EQ(job.rounds().progress().rounds, rounds.item<int64_t>());
        for (size_t p = 0; p < before.size(); ++p) EXPECT_TRUE(torch::equal(job.parameters()[p], before[p])) << p;
      }
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
    EXPECT_EQ(job.rounds().progress().lost, 1);
    EXPECT_EQ(job.rounds().take_lost_here(), rank.rank == 1);
    EXPECT_FALSE(job.rounds().take_lost_here());
  });
}

TEST(Rounds, LosingTheMostRoundsInARowIsAnErrorThatNamesTheRank) {
  run_ranks(2, [](const Rank& rank) {
    Job job(make_group(), {.fidelity = "exact", .tuning_budget = 0}, 2);
    int64_t step = 0;
    while (job.rounds().progress().rounds < 3) job.step(rank.rank, step++);
    const auto lose = [&] {
      const int64_t rounds = job.rounds().progress().rounds;
      while (job.rounds().progress().rounds == rounds) {
        if (rank.rank == 1) {
          const torch::NoGradGuard no_grad;
          job.parameters()[1][0].fill_(std::numeric_limits<float>::quiet_NaN());
        }
        job.step(rank.rank, step++);
      }
    };
    for (int64_t lost = 1; lost < LostRounds::kMostInARow; ++lost) lose();
    EXPECT_THAT(message_of(lose), HasSubstr("10 rounds in a row were lost, the last one because a parameter was not "
                                            "finite on rank 1; all ranks have the parameters"));
    for (const torch::Tensor& p : job.parameters()) EXPECT_TRUE(p.isfinite().all().item<bool>());
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

}  // namespace
}  // namespace gradtune::test
