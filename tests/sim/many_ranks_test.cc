// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// The growth of gradtune's own communication with the number of ranks. A step's control word, an agreement on a
// strategy, and its preparation take as many collectives, bytes and steps on thousands of ranks as on two, and no
// rank computes longer. So only the collectives themselves take longer there.
#include <gtest/gtest.h>

#include <algorithm>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "tests/sim/job.h"

namespace gradtune::sim {
namespace {

constexpr int64_t kSteps = 8, kElements = 64;

struct Run {
  std::vector<Call> control;                  // collectives of rank 0 besides those of gradients
  std::vector<double> step_ms;                // of rank 0
  std::optional<int64_t> prepared, in_force;  // steps in which all ranks had prepared, and first used, the strategy
};

// Messages take no time, so that a step's time is that of the ranks' own work. Rank 0 has a strategy prepared in its
// first step, and commits it as soon as all ranks have it.
Run run(int ranks) {
  JobOptions options{.world = {.size = ranks, .rank = {.bytes_per_second = 1e12, .latency_ns = 0}}};
  options.rank.table = exec::make_table({{kElements, core::DType::f32}});
  options.rank.steps = kSteps;
  const auto strategy = [&](const char* option) { return exec::make_strategy(options.rank.table, option, 1 << 20, 1); };
  options.rank.start = {{strategy("all_reduce"), "start"}};
  options.rank.gradient = [](int rank, int64_t) { return exec::Values(kElements, static_cast<float>(rank)); };
  const auto other = std::make_shared<const policies::Candidate>(
      policies::Candidate{strategy("bf16: encode@device all_reduce decode@device"), "other"});
  Run run;
  bool is_asked = false;
  options.leader.script = [&](const core::StepReport& report) -> tuner::Action {
    if (!std::exchange(is_asked, true)) return {{.kind = tuner::Command::Kind::prepare, .slot = 1}, other};
    if (!report.prepared || run.prepared) return {};
    run.prepared = report.step;
    return {{.kind = tuner::Command::Kind::commit, .slot = 1}, nullptr};
  };
  Job job(options);
  job.run();
  for (int r = 0; r < ranks; ++r) {
    const SimulatedRank& rank = job.rank(r);
    EXPECT_FALSE(rank.error()) << "rank " << r << ": " << rank.error()->message;
    const auto first = std::ranges::find(rank.steps(), other->strategy, &StepRecord::strategy);
    if (first == rank.steps().end()) continue;
    if (!run.in_force) run.in_force = first->step;
    EXPECT_EQ(first->step, *run.in_force) << "rank " << r;
  }
  for (const RecordedCall& call : job.rank(0).calls()) {
    if (call.call.group == Call::Group::control) run.control.push_back(call.call);
  }
  for (const StepRecord& step : job.rank(0).steps()) run.step_ms.push_back(step.step_ms);
  return run;
}

void expect_as_on_two(int ranks) {
  const Run two = run(2), many = run(ranks);
  ASSERT_TRUE(two.prepared && two.in_force);
  EXPECT_EQ(many.prepared, two.prepared);
  EXPECT_EQ(many.in_force, two.in_force);
  EXPECT_GE(two.control.size(), static_cast<size_t>(kSteps)) << "each step has its control word";
  std::vector<Call> expected = two.control;
  for (Call& call : expected) {  // the text of the strategy names the world size
    if (call.kind == comm::Collective::Kind::broadcast)
      call.count += static_cast<int64_t>(std::to_string(ranks).size()) - 1;
  }
  EXPECT_EQ(many.control, expected);
  ASSERT_EQ(many.step_ms.size(), two.step_ms.size());
  for (size_t s = 0; s < two.step_ms.size(); ++s) EXPECT_NEAR(many.step_ms[s], two.step_ms[s], 0.01) << "step " << s;
}

TEST(ManyRanks, AgreeAndPrepareAsTwoDo) {
  for (const int ranks : {3, 16, 128}) expect_as_on_two(ranks);
}

TEST(ManyRanks, DISABLED_AgreeAndPrepareAsTwoDoOnThousands) { expect_as_on_two(4096); }

}  // namespace
}  // namespace gradtune::sim
