// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// Tests jobs that end and continue. With the same step times they take the same decisions and end with the same bits
// as a job that never ended. It also tests what is kept if the resumed job differs.
#include <gmock/gmock.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <set>

#include "hooks/checkpoint.h"
#include "tests/hooks/checkpoint_job.h"

namespace gradtune::test {
namespace {

// Every rank must end like the uninterrupted job, which left its end in `folder`.
void expect_end_as(Training& job, const std::string& folder, const Rank& rank) {
  torch::Tensor parameters;
  torch::load(parameters, folder + "/end." + std::to_string(rank.rank));
  EXPECT_TRUE(torch::equal(job.parameters(), parameters));
  EXPECT_EQ(job.log(), tuner::read_file(folder + "/log." + std::to_string(rank.rank), 1 << 24).value());
}

void leave_end(Training& job, const std::string& folder, const Rank& rank) {
  torch::save(job.parameters(), folder + "/end." + std::to_string(rank.rank));
  std::ofstream(folder + "/log." + std::to_string(rank.rank)) << job.log();
}

// The residuals of the ranks in a checkpoint's folder, by the names of tensors: of one rank, or the mean.
using Owed = std::map<std::string, std::vector<double>>;
Owed owed_by(const std::string& folder, int rank) {
  const SavedFile file = read_rank_file(folder, manifest_in(folder), rank, table_of_model()).value();
  Owed owed;
  std::vector<float> values = file.residuals[0];
  for (size_t i = 0; i < file.parked[0].size(); ++i) values[i] += file.parked[0][i];
  auto at = values.begin();
  for (const core::TensorInfo& tensor : file.table.tensors) {
    owed[tensor.name].assign(at, at + tensor.numel);
    at += tensor.numel;
  }
  EXPECT_EQ(at, values.end());
  return owed;
}
Owed mean_owed(const std::string& folder) {
  const int size = manifest_in(folder).world_size;
  Owed mean = owed_by(folder, 0);
  for (int rank = 1; rank < size; ++rank) {
    for (const auto& [name, values] : owed_by(folder, rank)) {
      for (size_t i = 0; i < values.size(); ++i) mean[name][i] += values[i];
    }
  }
  for (auto& [name, values] : mean) {
    for (double& value : values) value /= size;
  }
  return mean;
}
// Equal up to the rounding of sums in fp32.
void expect_same(const Owed& found, const Owed& expected) {
  double most = 0;
  for (const auto& [name, values] : expected) {
    for (const double value : values) most = std::max(most, std::abs(value));
  }
  EXPECT_GT(most, 1e-4) << "something is owed";
  ASSERT_EQ(found.size(), expected.size());
  for (const auto& [name, values] : expected) {
    ASSERT_EQ(found.at(name).size(), values.size()) << name;
    for (size_t i = 0; i < values.size(); ++i)
      ASSERT_NEAR(found.at(name)[i], values[i], 2e-7 * most) << name << " " << i;
  }
}

// --- as if it had never ended ----------------------------------------------------------------------------------------

// A job that saves after some of its steps; other jobs, in other processes, begin at each of these steps and
// continue.
class GoingOn : public Checkpoint {
 protected:
  void expect_the_same(int size, const Options& options, const std::set<int64_t>& saved, int64_t steps,
                       const std::set<std::string>& stages) {
    const auto train = [&](Training& job, int64_t from, const std::string& to) {
      std::set<std::string> seen;
      for (int64_t step = from;; ++step) {
        if (saved.contains(step) && (step > from || from == 0)) {
          seen.insert(job.session().progress().stage);
          job.save(to + std::to_string(step));
        }
        if (step == steps) return seen;
        job.step();
      }
    };
    run_phase("whole", size, [&](const Rank& rank) {
      fs::create_directories(path("."));
      Training job(rank, make_group(), options);
      const std::set<std::string> seen = train(job, 0, path("whole"));
      if (rank.rank == 0) {
        EXPECT_THAT(seen, testing::IsSupersetOf(stages)) << job.log();
      }
      leave_end(job, path("."), rank);
    });
    run_phase("again", size, [&](const Rank& rank) {
      auto group = make_group();
      for (const int64_t step : saved) {
        SCOPED_TRACE("from step " + std::to_string(step));
        Training job(rank, group, options, {path("whole" + std::to_string(step)), step});
        train(job, step, path("again"));
        expect_end_as(job, path("."), rank);
      }
    });
  }
};

// Policies that model the times of operations learn nothing here: the clock stands still within a step.
TEST_F(GoingOn, WhileItIsTunedWithoutLoss) {
  expect_the_same(3, {.fidelity = "exact", .policy = "mergecomp", .tuning_share = 1.0},
                  {0, 8, 21, 44, 118, 130, 145, 160, 175, 220}, 240,
                  {"observe", "partition", "race", "confirm", "watch"});
}

const std::set<int64_t> kOften = {0, 1, 3, 8, 17, 20, 21, 22, 23, 31, 44, 79, 118, 140, 175, 220};

// A strategy was prepared in the step before, and no other rank knows it yet.
bool is_preparing(const std::string& folder) {
  return read_rank_file(folder, manifest_in(folder), 0, table_of_model()).value().rank.agreement.pending.has_value();
}

TEST_F(GoingOn, WhileItIsTunedWithLoss) {
  Options options{.fidelity = "lossy",
                  .compressors = {{"packed", "bf16", "bf16packed", "topk"}},  // with residuals
                  .policy = "mergecomp",
                  .tuning_share = 1.0,
                  .lossy_after = 10};
  expect_the_same(2, options, kOften, 240, {"observe", "partition", "race", "confirm", "watch"});
  EXPECT_TRUE(
      std::ranges::any_of(kOften, [this](int64_t step) { return is_preparing(path("whole" + std::to_string(step))); }));
  // With other options it is tuned again, starting from the committed strategy.
  options.seed = 3;
  run_phase("other", 2, [&](const Rank& rank) {
    Training job(rank, make_group(), options, {path("whole220"), 220});
    job.step();
    const std::string strategy = job.session().describe_in_force();
    EXPECT_TRUE(job.log().ends_with("1 " + strategy + "\n")) << "in force from the first step on";
    if (rank.rank == 0) {
      EXPECT_EQ(job.session().progress().stage, "imported");
    }
  });
}

TEST_F(GoingOn, FromAnImportedStrategy) {
  write_strategy(path("strategy.json"), 2, table_of_model(), {"bf16: encode@device all_reduce decode@device"});
  expect_the_same(2, {.fidelity = "half", .strategy = path("strategy.json"), .tuning_share = 1.0},
                  {1, 5, 20, 30, 50, 80}, 120, {"imported"});
}

constexpr const char* kTwoStep = ": encode@device all_to_all decode@device encode@device all_gather decode@device";

TEST_F(GoingOn, WithResidualsAndStateOfCompressors) {
  write_strategy(path("strategy.json"), 2, table_of_model(),
                 {std::string("topk:0.05") + kGather, kPowerSgd, std::string("topk:0.1") + kTwoStep});
  expect_the_same(2, pinned(path("strategy.json")), {0, 1, 6, 7, 12}, 16, {"imported"});
}

TEST_F(GoingOn, WithRandomCompressors) {
  write_strategy(path("strategy.json"), 2, table_of_model(),
                 {std::string("terngrad") + kGather, "randk:0.1: encode@device all_reduce decode@device"});
  expect_the_same(2, pinned(path("strategy.json")), {0, 5, 8}, 12, {"imported"});
}

// Shows that the tests above can fail: with model and optimizer alone a job ends with other bits.
TEST_F(Checkpoint, WithoutItResidualsAreLost) {
  write_strategy(path("strategy.json"), 2, table_of_model(), {std::string("topk:0.05") + kGather, kPowerSgd});
  run_phase("all", 2, [&](const Rank& rank) {
    auto group = make_group();
    Training whole(rank, group, pinned(path("strategy.json")));
    for (int step = 0; step < 5; ++step) whole.step();
    whole.save(path("five"));
    group->barrier()->wait();
    Training job(rank, group, pinned(path("strategy.json")), {path("five"), 5, /*checkpoint=*/false});
    for (int step = 0; step < 5; ++step) {
      whole.step();
      job.step();
    }
    EXPECT_FALSE(torch::equal(whole.parameters(), job.parameters()));
  });
}

// --- another job -----------------------------------------------------------------------------------------------------

TEST_F(Checkpoint, OnMoreAndOnFewerRanksWhatIsOwedToTheAverageStays) {
  core::GradientTable other_order = table_of_model();
  std::ranges::reverse(other_order.tensors);
  const std::string program = std::string("topk:0.05") + kGather;
  write_strategy(path("two.json"), 2, table_of_model(), {program});
  write_strategy(path("four.json"), 4, other_order, {program, kPowerSgd});
  run_phase("two", 2, [&](const Rank& rank) {
    Training job(rank, make_group(), pinned(path("two.json")));
    for (int step = 0; step < 12; ++step) job.step();
    job.save(path("two"));
  });
  run_phase("four", 4, [&](const Rank& rank) {
    auto group = make_group();
    {
      Training job(rank, group, {.tuning_budget = 0}, {path("two"), 12});
      EXPECT_EQ(job.session().progress().epoch, 1) << "tuning starts again";
      job.session().save_checkpoint(path("resized"));
      expect_same(owed_by(path("resized"), rank.rank), mean_owed(path("two")));
      for (int step = 0; step < 3; ++step) job.step();
      EXPECT_EQ(difference_from_rank0(job.parameters(), *group), 0);
    }
    Training job(rank, group, pinned(path("four.json")), {path("two"), 12});
    job.session().save_checkpoint(path("reordered"));
    expect_same(owed_by(path("reordered"), rank.rank), mean_owed(path("two")));
    for (int step = 0; step < 6; ++step) job.step();
    EXPECT_EQ(difference_from_rank0(job.parameters(), *group), 0);
    job.save(path("four"));
  });
  run_phase("three", 3, [&](const Rank& rank) {
    Training job(rank, make_group(), {.tuning_budget = 0}, {path("four"), 18});
    job.session().save_checkpoint(path("three"));
    expect_same(owed_by(path("three"), rank.rank), mean_owed(path("four")));
  });
}

TEST_F(Checkpoint, WithOtherOptionsTuningStartsAgainAndResidualsStay) {
  write_strategy(path("strategy.json"), 2, table_of_model(), {std::string("topk:0.05") + kGather});
  run_phase("all", 2, [&](const Rank& rank) {
    auto group = make_group();
    {
      Training job(rank, group, pinned(path("strategy.json")));
      for (int step = 0; step < 5; ++step) job.step();
      job.save(path("five"));
    }
    group->barrier()->wait();
    Training job(rank, group, {.fidelity = "lossy", .seed = 3}, {path("five"), 5});
    if (rank.rank == 0) {
      EXPECT_EQ(job.session().progress().stage, "observe");
    }
    job.session().save_checkpoint(path("again"));
    expect_same(owed_by(path("again"), rank.rank), owed_by(path("five"), rank.rank));
    for (int step = 0; step < 40; ++step) job.step();
    if (rank.rank == 0) {
      EXPECT_NE(job.session().progress().stage, "observe") << "it is tuned";
    }
  });
}

}  // namespace
}  // namespace gradtune::test
