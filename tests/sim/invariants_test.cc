// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// Properties that always hold, tested over many random jobs.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <string>
#include <utility>

#include "engine/compress/compressor.h"
#include "engine/exec/program.h"
#include "tests/sim/ledger.h"
#include "tests/sim/random_job.h"
#include "tuner/agreement.h"

namespace gradtune::sim {
namespace {

using tuner::Command;

constexpr uint64_t kSeeds = 140;

void run_to_the_end(Job& job) {
  job.run();
  for (int r = 0; r < job.size(); ++r) {
    ASSERT_TRUE(job.rank(r).ended()) << "rank " << r << " waits for ever";
    ASSERT_FALSE(job.rank(r).error()) << job.rank(r).error()->message;
  }
}

class RandomJobs : public testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(Ranks, RandomJobs, testing::Values(2, 3, 4));

TEST_P(RandomJobs, RunTheSameEpochAndStrategyOnAllRanksInEveryStep) {
  std::map<Command::Kind, int> commands;
  for (uint64_t seed = 0; seed < kSeeds; ++seed) {
    Job job(random_job(seed, GetParam()));
    ASSERT_NO_FATAL_FAILURE(run_to_the_end(job)) << "seed " << seed;
    for (size_t s = 0; s < job.rank(0).steps().size(); ++s) {
      const StepRecord& first = job.rank(0).steps()[s];
      ++commands[first.command.kind];
      for (int r = 1; r < job.size(); ++r) {
        const StepRecord& record = job.rank(r).steps()[s];
        const std::string where =
            "seed " + std::to_string(seed) + ", step " + std::to_string(s) + ", rank " + std::to_string(r);
        ASSERT_EQ(record.epoch, first.epoch) << where;
        ASSERT_EQ(core::hash(record.strategy), core::hash(first.strategy)) << where;
        ASSERT_EQ(record.command, first.command) << where;
      }
    }
  }
  using enum Command::Kind;
  for (const Command::Kind kind : {keep, prepare, run, drop, commit}) {
    EXPECT_GE(commands[kind], 20) << "of kind " << static_cast<int>(kind);
  }
}

TEST_P(RandomJobs, LoseNothingAcrossSwitchesAndUndoStepsThatAreNotFinite) {
  int64_t drains = 0, emptied = 0;
  for (uint64_t seed = 0; seed < kSeeds; ++seed) {
    JobOptions options = random_job(seed, GetParam());
    Ledger ledger(options.rank.table, GetParam());
    options.rank.on_values = [&](StepValues values) { ledger.add(std::move(values)); };
    Job job(options);
    ASSERT_NO_FATAL_FAILURE(run_to_the_end(job)) << "seed " << seed;
    ASSERT_EQ(ledger.steps(), options.rank.steps);
    for (int r = 0; r < job.size(); ++r) {
      for (const StepRecord& record : job.rank(r).steps()) {
        ASSERT_EQ(record.finite, !poisoned_rank(seed, job.size(), record.step))
            << "step " << record.step << ", rank " << r;
      }
    }
    ASSERT_FALSE(HasFailure()) << "seed " << seed;
    drains += ledger.drains();
    emptied += ledger.emptied();
  }
  EXPECT_GE(drains, 100);
  EXPECT_GE(emptied, 45);
}

// Options with error feedback, and one without a compressor.
std::vector<std::string> feeding_back() {
  const core::TraitsTable known = compress::known_traits();
  std::vector<std::string> options = {"all_reduce"};
  for (const core::Place place : {core::Place::device, core::Place::host}) {
    for (const std::string& text : exec::all_options(place)) {
      const core::Option option = core::parse_option(text, known).value();
      if (option.codecs.empty()) continue;
      const core::CompressorTraits* traits = core::traits_of(option.codecs[0], known);
      if (traits->error_feedback && !traits->replaces_momentum) options.push_back(text);
    }
  }
  return options;
}

// Constant gradients, so that residuals grow far beyond them.
TEST_P(RandomJobs, ASwitchOfCompressorsReleasesNoMoreThanItsShareOfTheGradient) {
  int64_t drains = 0, switches = 0;
  double most_owed = 0;
  for (uint64_t seed = 0; seed < kSeeds / 2; ++seed) {
    JobOptions options = random_job(seed, GetParam(), feeding_back());
    options.rank.steps = 60;
    options.rank.gradient = [table = options.rank.table, seed](int rank, int64_t) {
      core::Rng values(100 * seed + static_cast<uint64_t>(rank));
      return exec::random_gradient(table, values);
    };
    Ledger ledger(options.rank.table, GetParam());
    options.rank.on_values = [&](StepValues values) {
      double gradient = 0, parked = 0;
      for (size_t i = 0; i < values.given.size(); ++i) {
        gradient += std::pow(static_cast<double>(values.given[i]), 2);
        parked += std::pow(static_cast<double>(values.parked_before[i]), 2);
      }
      if (gradient > 0) most_owed = std::max(most_owed, std::sqrt(parked / gradient));
      ledger.add(std::move(values));
    };
    Job job(options);
    ASSERT_NO_FATAL_FAILURE(run_to_the_end(job)) << "seed " << seed;
    ASSERT_FALSE(HasFailure()) << "seed " << seed;
    drains += ledger.parked_drains();
    switches += ledger.switches();
  }
  EXPECT_GE(drains, 500);
  EXPECT_GE(switches, 100);
  EXPECT_GT(most_owed, 2 * kMostApplied) << "all of it at once would have been too much";
}

// The calls of the strategies, in order. Each step's last one is followed by the control word, and by the
// collectives of its command.
struct Expected {
  Call call;
  int most_under_way;
};

std::vector<Expected> expected_calls(const SimulatedRank& rank, const core::GradientTable& table, int r, int size) {
  using Kind = comm::Collective::Kind;
  std::vector<Expected> calls;
  for (const StepRecord& record : rank.steps()) {
    const auto program = exec::compile(record.strategy, table, {.rank = r, .size = size});
    for (const core::Issue& issue : record.strategy.order) {
      const std::vector<exec::Op>& ops = program.value()->buckets[static_cast<size_t>(issue.bucket)].ops;
      const auto op = std::find_if(ops.begin(), ops.end(), [&](const exec::Op& each) {
        return each.is<exec::Collective>() && each.step == issue.step;
      });
      const auto& collective = std::get<exec::Collective>(op->work);
      calls.push_back(
          {{Call::Group::data, collective.kind, collective.wire, collective.count}, record.strategy.in_flight});
    }
    constexpr int kNumbers = tuner::kControlWords + exec::kOwnControlWords;
    calls.push_back({{Call::Group::control, Kind::all_reduce, comm::WireType::f64, kNumbers}, 1});
    if (record.command.kind == Command::Kind::prepare) {
      calls.push_back({{Call::Group::control, Kind::broadcast, comm::WireType::u8, record.command.bytes}, 1});
    }
  }
  return calls;
}

TEST_P(RandomJobs, IssueCollectivesInTheStrategysOrderWhateverTheOrderOfCompletion) {
  int overtaken = 0, most_under_way = 0;
  for (uint64_t seed = 0; seed < kSeeds; ++seed) {
    const JobOptions options = random_job(seed, GetParam());
    Job job(options);
    ASSERT_NO_FATAL_FAILURE(run_to_the_end(job)) << "seed " << seed;
    for (int r = 0; r < job.size(); ++r) {
      // The control word leaves as soon as it may, with any number of gradient collectives issued: each group has an
      // order.
      const std::vector<Expected> expected = expected_calls(job.rank(r), options.rank.table, r, job.size());
      for (const Call::Group group : {Call::Group::data, Call::Group::control}) {
        const auto of_group = [&](const auto& each) { return each.call.group == group; };
        std::vector<RecordedCall> calls, of_rank0;
        std::vector<Expected> wanted;
        std::ranges::copy_if(job.rank(r).calls(), std::back_inserter(calls), of_group);
        std::ranges::copy_if(job.rank(0).calls(), std::back_inserter(of_rank0), of_group);
        std::ranges::copy_if(expected, std::back_inserter(wanted), of_group);
        ASSERT_EQ(calls.size(), wanted.size()) << "seed " << seed << ", rank " << r;
        for (size_t i = 0; i < calls.size(); ++i) {
          ASSERT_EQ(calls[i].call, wanted[i].call) << "seed " << seed << ", rank " << r << ", call " << i;
          ASSERT_EQ(calls[i].call, of_rank0[i].call) << "seed " << seed << ", rank " << r << ", call " << i;
          ASSERT_LE(calls[i].under_way, wanted[i].most_under_way)
              << "seed " << seed << ", rank " << r << ", call " << i;
          overtaken += calls[i].overtook ? 1 : 0;
          most_under_way = std::max(most_under_way, calls[i].under_way);
        }
      }
    }
  }
  EXPECT_GE(overtaken, 1'000);
  EXPECT_EQ(most_under_way, 5);
}

}  // namespace
}  // namespace gradtune::sim
