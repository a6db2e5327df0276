// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// All ranks notice a rank that received a different strategy, before it can run.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include <string>

#include "engine/compress/compressor.h"
#include "tests/sim/random_job.h"
#include "tuner/files/strategy_file.h"

namespace gradtune::sim {
namespace {

using testing::AnyOf;
using testing::HasSubstr;

// As good as the sent one, but different.
std::string another(const std::string& text) {
  tuner::StrategyFile file = tuner::parse_strategy(text, compress::known_traits()).value();
  ++file.strategy.in_flight;
  return tuner::to_json(file);
}

class Mismatch : public testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(Ranks, Mismatch, testing::Values(2, 3, 4));

TEST_P(Mismatch, OfOneReceivedStrategyEndsAllRanksInTheNextStepBeforeAnyFurtherPayload) {
  int found = 0;
  for (uint64_t seed = 0; seed < 50; ++seed) {
    JobOptions options = random_job(seed, GetParam());
    const int corrupted = 1 + static_cast<int>(seed % static_cast<uint64_t>(GetParam() - 1));
    uint64_t left = seed % 3;
    options.rank.received = [&](int rank, const std::string& text) {
      return rank == corrupted && left-- == 0 ? another(text) : text;
    };
    Job job(options);
    job.run();
    // The command may be followed by one that takes it back before the hashes are compared, or never be given.
    if (!job.rank(0).error()) continue;
    ++found;
    const int64_t step = job.rank(0).step();
    const std::string name = "(differs from rank 0: rank " + std::to_string(corrupted) + ")";
    int names = 0;
    for (int r = 0; r < job.size(); ++r) {
      const SimulatedRank& rank = job.rank(r);
      ASSERT_TRUE(rank.error()) << "seed " << seed << ", rank " << r;
      ASSERT_FALSE(rank.steps().empty()) << "seed " << seed;
      EXPECT_EQ(rank.error()->code, core::Error::Code::mismatch);
      EXPECT_THAT(rank.error()->message, HasSubstr("ranks received different strategies for slot"));
      // A rank that knows ends, which may end the comparison for the others.
      EXPECT_THAT(rank.error()->message, AnyOf(HasSubstr(name), HasSubstr("is lost")));
      names += rank.error()->message.ends_with(name) ? 1 : 0;
      EXPECT_EQ(rank.step(), step);
      EXPECT_EQ(rank.steps().back().command.kind, tuner::Command::Kind::prepare);
      // After the step's control word, only the collective that names the ranks follows.
      const CallLog& calls = rank.calls();
      EXPECT_EQ(calls.back().call,
                (Call{Call::Group::control, comm::Collective::Kind::all_gather, comm::WireType::u8, 8}));
      const auto before = std::find_if(calls.rbegin() + 1, calls.rend(), [](const RecordedCall& call) {
        return call.call.group == Call::Group::control;
      });
      ASSERT_NE(before, calls.rend());
      EXPECT_EQ(before->call.kind, comm::Collective::Kind::all_reduce);
    }
    EXPECT_GE(names, 1) << "seed " << seed;
  }
  EXPECT_GE(found, 25);
}

}  // namespace
}  // namespace gradtune::sim
