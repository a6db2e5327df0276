// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// If a rank disappears silently, all others end by the deadline, with an error that names the awaited rank.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <string>

#include "tests/sim/random_job.h"

namespace gradtune::sim {
namespace {

using core::Error;
using testing::HasSubstr;

// The rank that an error blames: the awaited one, or the one that reported its own end.
int blamed(const Error& error) {
  for (const std::string& words : {std::string("waiting for rank "), std::string("rank ")}) {
    const size_t at = error.message.find(words);
    if (at != std::string::npos) return std::stoi(error.message.substr(at + words.size()));
  }
  return -1;
}

// The latest end of the last survivor: the deadline of the first collective that cannot end any more, and the
// message that tells the others.
int64_t latest_end_ns(const Job& job, const JobOptions& options, int crashed) {
  int64_t first_ns = std::numeric_limits<int64_t>::max();
  for (int r = 0; r < job.size(); ++r) {
    if (r == crashed) continue;
    for (const RecordedCall& each : job.rank(r).calls()) {
      if (each.failed) first_ns = std::min(first_ns, each.start_ns);
    }
  }
  return first_ns + options.rank.executor.timeout_ms * 1'000'000 + options.world.rank.latency_ns +
         options.world.jitter_ns + options.world.stall_ns;
}

// All survivors ended in time, and every chain of blame leads to the rank that crashed.
void expect_named(const Job& job, const JobOptions& options, int crashed) {
  for (int r = 0; r < job.size(); ++r) {
    if (r == crashed) continue;
    ASSERT_TRUE(job.rank(r).error()) << "rank " << r << " goes on without rank " << crashed;
    const Error& error = *job.rank(r).error();
    EXPECT_TRUE(error.code == Error::Code::timeout || error.code == Error::Code::lost) << error.message;
    EXPECT_THAT(error.message, HasSubstr(" failed: "));
    EXPECT_LE(job.rank(r).ended_ns(), latest_end_ns(job, options, crashed)) << error.message;
    int suspect = r;
    for (int links = 0; links < job.size() && suspect != crashed; ++links) {
      ASSERT_TRUE(job.rank(suspect).error()) << error.message;
      suspect = blamed(*job.rank(suspect).error());
      ASSERT_TRUE(suspect >= 0 && suspect < job.size()) << error.message;
    }
    EXPECT_EQ(suspect, crashed) << error.message;
  }
}

class ACrash : public testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(Ranks, ACrash, testing::Values(2, 3, 4));

TEST_P(ACrash, AtAnyTimeEndsAllOthersByTheDeadlineWithAnErrorThatLeadsToIt) {
  for (uint64_t seed = 0; seed < 150; ++seed) {
    JobOptions options = random_job(seed, GetParam());
    Job whole(options);
    whole.run();
    core::Rng rng(seed);
    const int crashed = static_cast<int>(rng.below(static_cast<uint64_t>(GetParam())));
    // Not in the last step, in which the others may not need it any more.
    const std::vector<StepRecord>& steps = whole.rank(crashed).steps();
    ASSERT_FALSE(whole.rank(crashed).error()) << "seed " << seed;
    const double spared_ms = steps.back().step_ms;
    const double end_ns = static_cast<double>(whole.rank(crashed).ended_ns()) - spared_ms * 1e6;
    options.crashes = {{crashed, static_cast<int64_t>(rng.uniform() * end_ns)}};
    Job job(options);
    job.run();
    ASSERT_NO_FATAL_FAILURE(expect_named(job, options, crashed)) << "seed " << seed;
    ASSERT_FALSE(HasFailure()) << "seed " << seed << ", rank " << crashed << " crashed";
  }
}

TEST_P(ACrash, BeforeItJoinsTheBroadcastOfAStrategyNamesTheBroadcast) {
  int tried = 0;
  for (uint64_t seed = 0; seed < 60; ++seed) {
    JobOptions options = random_job(seed, GetParam());
    Job whole(options);
    whole.run();
    const int crashed = static_cast<int>(seed % static_cast<uint64_t>(GetParam()));
    const CallLog& calls = whole.rank(crashed).calls();
    const auto broadcast = std::find_if(calls.begin(), calls.end(), [](const RecordedCall& each) {
      return each.call.kind == comm::Collective::Kind::broadcast;
    });
    if (broadcast == calls.end()) continue;
    ++tried;
    // Between the completion of the control word and the next call: only that call is missing.
    options.crashes = {{crashed, (broadcast - 1)->end_ns}};
    Job job(options);
    job.run();
    ASSERT_NO_FATAL_FAILURE(expect_named(job, options, crashed)) << "seed " << seed;
    for (int r = 0; r < job.size(); ++r) {
      if (r == crashed) continue;
      EXPECT_THAT(job.rank(r).error()->message, HasSubstr("broadcast")) << "seed " << seed;
    }
  }
  EXPECT_GE(tried, 30);
}

}  // namespace
}  // namespace gradtune::sim
