// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// Runs the scheduler under random strategies and random orders of events: the rules of scheduler.h always hold.
#include "engine/exec/scheduler.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <set>
#include <utility>

#include "engine/core/rng.h"
#include "tests/engine/exec/gradient_arenas.h"

namespace gradtune::exec {
namespace {

using Kind = Action::Kind;

// Pumps a core through one step: one of all possible next events happens, at random.
class RandomPump {
 public:
  RandomPump(const Program& program, core::Rng& rng)
      : program_(program), rng_(rng), next_op_(program.buckets.size(), -1) {}

  void run(Scheduler& core) {
    std::vector<Action> actions;
    core.begin(program_);
    core.start(actions);
    for (size_t b = 0; b < program_.buckets.size(); ++b) open_.push_back({Kind::finished, static_cast<int32_t>(b), -1});
    take(core, actions);
    while (!open_.empty()) {
      std::swap(open_[rng_.below(open_.size())], open_.back());
      const Action event = open_.back();
      open_.pop_back();
      actions.clear();
      happen(core, event, actions);
      take(core, actions);
    }
    EXPECT_TRUE(finished_ && backward_done_ && control_);
    std::vector<core::Issue> expected;
    for (const Issue& issue : program_.order) {
      const Op& op = program_.buckets[static_cast<size_t>(issue.bucket)].ops[static_cast<size_t>(issue.op)];
      expected.push_back({issue.bucket, op.step});
    }
    EXPECT_EQ(issued_, expected);
    EXPECT_EQ(core.in_flight(), 0);
  }

 private:
  // An open event is an action under way; Kind::finished stands for a bucket that is not ready.
  void happen(Scheduler& core, const Action& event, std::vector<Action>& actions) {
    if (event.kind == Kind::control) {
      control_done_ = true;
      return core.control_done(actions);
    }
    if (event.kind == Kind::start) --in_flight_;
    if (event.kind == Kind::finished) {
      const int32_t leading = leading_device_ops(program_.buckets[static_cast<size_t>(event.bucket)]);
      next_op_[static_cast<size_t>(event.bucket)] = leading;
      return core.bucket_ready(event.bucket, leading, actions);
    }
    ++next_op_[static_cast<size_t>(event.bucket)];
    core.op_done(event.bucket, event.op, actions);
  }

  void take(const Scheduler& core, const std::vector<Action>& actions) {
    for (const Action& action : actions) {
      EXPECT_FALSE(finished_) << "an action after the step was finished";
      if (action.kind == Kind::finished) {
        finished_ = true;
        EXPECT_TRUE(open_.empty());
        continue;
      }
      if (action.kind == Kind::backward_done) {
        EXPECT_FALSE(std::exchange(backward_done_, true)) << "backward was done twice";
        EXPECT_TRUE(control_done_ && all_done(core::Due::backward));
        continue;
      }
      if (action.kind == Kind::late_done) {
        const auto bucket = static_cast<size_t>(action.bucket);
        EXPECT_EQ(program_.buckets[bucket].due, core::Due::forward);
        EXPECT_TRUE(is_done(bucket) && late_done_.insert(action.bucket).second);
        continue;
      }
      if (action.kind == Kind::control) {
        EXPECT_FALSE(control_) << "the control collective went out twice";
        control_ = true;
      } else {
        check_op(action);
      }
      open_.push_back(action);
    }
    EXPECT_EQ(core.in_flight(), in_flight_);
    // At the first possible moment, and no sooner.
    bool all_judged = true;
    for (size_t b = 0; b < next_op_.size(); ++b) all_judged &= next_op_[b] >= program_.buckets[b].judged_ops;
    EXPECT_EQ(control_, all_judged);
    EXPECT_EQ(backward_done_, control_done_ && all_done(core::Due::backward));
    EXPECT_EQ(finished_, backward_done_ && all_done(core::Due::forward));
  }

  bool is_done(size_t bucket) const {
    return next_op_[bucket] == static_cast<int32_t>(program_.buckets[bucket].ops.size());
  }
  bool all_done(core::Due due) const {
    for (size_t b = 0; b < program_.buckets.size(); ++b) {
      if (program_.buckets[b].due == due && !is_done(b)) return false;
    }
    return true;
  }

  void check_op(const Action& action) {
    const Op& op = program_.buckets[static_cast<size_t>(action.bucket)].ops[static_cast<size_t>(action.op)];
    EXPECT_EQ(action.op, next_op_[static_cast<size_t>(action.bucket)]) << "not the bucket's next operation";
    if (!op.is<Collective>()) {
      const bool is_late = program_.buckets[static_cast<size_t>(action.bucket)].due == core::Due::forward;
      EXPECT_FALSE(control_ && !is_late && op.is<Encode>()) << "an encode after the control word";
      EXPECT_EQ(action.kind, op.place == core::Place::device ? Kind::run_device : Kind::run_host);
      return;
    }
    EXPECT_EQ(action.kind, Kind::start);
    for (size_t p = 0; p + static_cast<size_t>(core::most_held(program_.strategy)) <= issued_.size(); ++p) {
      const Issue& before = program_.order[p];
      EXPECT_GT(next_op_[static_cast<size_t>(before.bucket)], before.release) << "memory that is still needed";
    }
    EXPECT_LE(++in_flight_, program_.strategy.in_flight);
    issued_.push_back({action.bucket, op.step});
  }

  const Program& program_;
  core::Rng& rng_;
  std::vector<Action> open_;
  std::vector<int32_t> next_op_;
  std::vector<core::Issue> issued_;
  int in_flight_ = 0;
  std::set<int32_t> late_done_;
  bool control_ = false, control_done_ = false;
  bool backward_done_ = false;
  bool finished_ = false;
};

TEST(Scheduler, KeepsItsRulesWhateverHappensWhen) {
  const core::GradientTable table = mixed_table();
  std::vector<std::string> options = all_options(core::Place::device);
  for (std::string& option : all_options(core::Place::host)) options.push_back(std::move(option));
  Scheduler core;  // one for all steps, as in the executor
  for (uint64_t seed = 0; seed < 300; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    core::Rng rng(seed);
    core::Strategy strategy = random_strategy(table, options, rng);
    for (core::Bucket& bucket : strategy.buckets) {
      const bool can_be_late = bucket.option.codecs.empty() || bucket.option.codecs[0].name != "fp16";
      if (seed % 2 == 1 && can_be_late && rng.below(3) == 0) bucket.due = core::Due::forward;
    }
    ASSERT_TRUE(core::validate(strategy, table).ok());
    const auto program = compile(strategy, table, {.rank = static_cast<int>(seed % 3), .size = 3});
    ASSERT_TRUE(program.ok()) << program.error().message;
    for (int step = 0; step < 2; ++step) RandomPump(*program.value(), rng).run(core);
    if (testing::Test::HasFailure()) break;
  }
}

// Ranks that are not the root of a gather decode nothing, and continue all the same.
TEST(Scheduler, RanksThatTakeNoPartInADecodeHoldNothing) {
  const core::GradientTable table =
      make_table(std::vector<std::pair<int64_t, core::DType>>(20, {500, core::DType::f32}));
  const std::string option =
      "none: encode@device gather@intra decode@device reduce_scatter@inter all_gather@inter broadcast@intra";
  const core::Strategy strategy = make_strategy(table, option, 2'000, 1);
  Scheduler core;
  for (int rank = 0; rank < 4; ++rank) {
    const auto program = compile(strategy, table, core::seat(rank, 4, 2));
    ASSERT_TRUE(program.ok()) << program.error().message;
    for (uint64_t seed = 0; seed < 10; ++seed) {
      core::Rng rng(seed);
      RandomPump(*program.value(), rng).run(core);
    }
    for (const Issue& issue : program.value()->order) {
      const std::vector<Op>& ops = program.value()->buckets[static_cast<size_t>(issue.bucket)].ops;
      EXPECT_TRUE(issue.release == issue.op || ops[static_cast<size_t>(issue.release)].is<Decode>());
    }
  }
}

TEST(Scheduler, WithoutBucketsOnlyTheControlCollectiveRuns) {
  const auto program = compile(core::Strategy{}, core::GradientTable{}, {.size = 2});
  Scheduler core;
  std::vector<Action> actions;
  core.begin(*program.value());
  core.start(actions);
  EXPECT_EQ(actions, std::vector<Action>{{Kind::control}});
  actions.clear();
  core.control_done(actions);
  EXPECT_EQ(actions, (std::vector<Action>{{Kind::backward_done}, {Kind::finished}}));
}

TEST(Scheduler, AnOperationThatIsNotTheNextOneIsAProgrammersError) {
  const core::GradientTable table = make_table({{100, core::DType::f32}});
  const auto program =
      compile(make_strategy(table, "bf16: encode@host all_reduce decode@host", 1 << 20, 1), table, {.size = 2});
  Scheduler core;
  std::vector<Action> actions;
  core.begin(*program.value());
  core.bucket_ready(0, 0, actions);
  EXPECT_EQ(actions, std::vector<Action>{(Action{Kind::run_host, 0, 0})});
  EXPECT_THROW(core.op_done(0, 1, actions), core::ProgramError);
}

}  // namespace
}  // namespace gradtune::exec
