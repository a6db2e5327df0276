// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// Model-checks the step protocol of two and three ranks: it explores every order of events in small programs. An
// event is a tensor that is ready, an operation that is done, a collective that is done on one rank once all ranks
// have issued it, or the control collective likewise. Tensors that a rank does not use are ready only at the end of
// its backward pass, and they differ between ranks. Frozen tensors are in no table, tied ones are one tensor, and
// those without elements are in no bucket.
#include <gtest/gtest.h>

#include <algorithm>
#include <set>
#include <string>
#include <unordered_map>
#include <vector>

#include "engine/core/rng.h"
#include "engine/exec/scheduler.h"
#include "tests/engine/exec/gradient_arenas.h"

namespace gradtune::exec {
namespace {

using Kind = Action::Kind;

class Model {
 public:
  // `late`: for each rank, a bit for each tensor that is ready only after all others.
  Model(const core::GradientTable& table, const core::Strategy& strategy, const std::vector<uint32_t>& late)
      : tensors_(static_cast<int>(table.tensors.size())), late_(late) {
    const auto size = static_cast<int>(late.size());
    for (int r = 0; r < size; ++r) {
      programs_.push_back(compile(strategy, table, {.rank = r, .size = size}).value());
      order_.clear();
      for (const Issue& issue : programs_.back()->order) order_.emplace_back(issue.bucket, issue.op);
      if (r == 0) continue;
      // In flat programs all ranks take part in all collectives.
      EXPECT_EQ(programs_[0]->order.size(), programs_.back()->order.size());
    }
    for (size_t t = 0; t < table.tensors.size(); ++t) {
      if (table.tensors[t].numel > 0) needed_ |= 1U << t;
    }
  }

  // Explores all reachable states; returns their number.
  size_t explore() {
    State start;
    for (const auto& program : programs_) {
      Rank rank;
      rank.missing.resize(program->buckets.size());
      rank.next.assign(program->buckets.size(), -1);
      for (size_t b = 0; b < rank.missing.size(); ++b) rank.missing[b] = program->buckets[b].tensors;
      rank.core.begin(*program);
      std::vector<Action> actions;
      rank.core.start(actions);
      take(rank, actions);
      start.push_back(std::move(rank));
    }
    add(std::move(start));
    while (!open_.empty() && !testing::Test::HasFailure()) {
      const State state = std::move(open_.back());
      open_.pop_back();
      expand(state);
    }
    EXPECT_GT(ends_, 0);
    return seen_.size();
  }

  // Tells if control has left in some state, on some rank, with tensors not ready there.
  bool control_left_early() const { return control_left_early_; }

 private:
  struct Rank {
    Scheduler core;
    uint32_t ready = 0;            // a bit for each tensor
    std::vector<int32_t> missing;  // of each bucket
    std::vector<int32_t> next;     // operation of each bucket that is under way or waits; -1: not ready
    std::vector<Action> under_way;
    size_t issued = 0;
    int backward_done = 0, late_done = 0;
    bool control = false, control_done = false, finished = false;
  };
  using State = std::vector<Rank>;

  void expand(const State& state) {
    int events = 0;
    const auto happen = [&](size_t r, const auto& event) {
      ++events;
      State next = state;
      std::vector<Action> actions;
      event(next[r], actions);
      take(next[r], actions);
      add(std::move(next));
    };
    for (size_t r = 0; r < state.size(); ++r) {
      const Rank& rank = state[r];
      const uint32_t early = ~late_[r] & ((1U << tensors_) - 1);
      for (int t = 0; t < tensors_; ++t) {
        const uint32_t bit = 1U << t;
        if ((rank.ready & bit) != 0 || ((late_[r] & bit) != 0 && (early & ~rank.ready) != 0)) continue;
        happen(r, [&](Rank& to, std::vector<Action>& actions) { make_ready(to, programs_[r].get(), t, actions); });
      }
      for (size_t i = 0; i < rank.under_way.size(); ++i) {
        const Action action = rank.under_way[i];
        if (!may_end(state, action)) continue;
        happen(r, [&](Rank& to, std::vector<Action>& actions) {
          to.under_way.erase(to.under_way.begin() + static_cast<ptrdiff_t>(i));
          if (action.kind == Kind::control) {
            to.control_done = true;
            return to.core.control_done(actions);
          }
          ++to.next[static_cast<size_t>(action.bucket)];
          to.core.op_done(action.bucket, action.op, actions);
        });
      }
    }
    if (events > 0) return;
    ++ends_;
    for (const Rank& rank : state) {
      EXPECT_TRUE(rank.finished) << "nothing can happen any more, and the step is not over";
      EXPECT_EQ(rank.backward_done, 1);
      EXPECT_EQ(rank.late_done, std::ranges::count(programs_[0]->buckets, core::Due::forward, &BucketProgram::due));
    }
  }

  // A collective ends when all ranks have issued as many; control when all have sent theirs.
  bool may_end(const State& state, const Action& action) const {
    if (action.kind == Kind::control) {
      return std::all_of(state.begin(), state.end(), [](const Rank& rank) { return rank.control; });
    }
    if (action.kind != Kind::start) return true;
    const auto number = static_cast<size_t>(
        std::find(order_.begin(), order_.end(), std::pair(action.bucket, action.op)) - order_.begin());
    return std::all_of(state.begin(), state.end(), [&](const Rank& rank) { return rank.issued > number; });
  }

  static void make_ready(Rank& rank, const Program* program, int tensor, std::vector<Action>& actions) {
    rank.ready |= 1U << tensor;
    for (const Piece& piece : program->pieces_of_tensor[static_cast<size_t>(tensor)]) {
      const auto bucket = static_cast<size_t>(piece.bucket);
      if (--rank.missing[bucket] > 0) continue;
      rank.next[bucket] = leading_device_ops(program->buckets[bucket]);
      rank.core.bucket_ready(piece.bucket, rank.next[bucket], actions);
    }
  }

  void take(Rank& rank, const std::vector<Action>& actions) {
    for (const Action& action : actions) {
      EXPECT_FALSE(rank.finished) << "an action after the step was over";
      if (action.kind == Kind::finished) {
        rank.finished = true;
        EXPECT_TRUE(rank.under_way.empty() && rank.control_done);
        continue;
      }
      if (action.kind == Kind::backward_done || action.kind == Kind::late_done) {
        (action.kind == Kind::late_done ? ++rank.late_done : ++rank.backward_done);
        EXPECT_TRUE(action.kind == Kind::late_done || rank.control_done);
        continue;
      }
      if (action.kind == Kind::control) {
        EXPECT_FALSE(rank.control) << "control went out twice";
        rank.control = true;
        for (const int32_t next : rank.next) EXPECT_GE(next, 0) << "control before a bucket's leading operations";
        EXPECT_EQ(rank.ready & needed_, needed_);
        control_left_early_ = control_left_early_ || rank.ready != (1U << tensors_) - 1;
      } else {
        EXPECT_EQ(action.op, rank.next[static_cast<size_t>(action.bucket)]) << "not the bucket's next operation";
        EXPECT_EQ(std::count(rank.under_way.begin(), rank.under_way.end(), action), 0) << "issued twice";
      }
      if (action.kind == Kind::start) {
        ASSERT_LT(rank.issued, order_.size());
        EXPECT_EQ(std::pair(action.bucket, action.op), order_[rank.issued]) << "out of the total order";
        ++rank.issued;
      }
      rank.under_way.push_back(action);
    }
    const auto in_flight = std::count_if(rank.under_way.begin(), rank.under_way.end(),
                                         [](const Action& action) { return action.kind == Kind::start; });
    EXPECT_EQ(rank.core.in_flight(), in_flight);
    EXPECT_LE(in_flight, programs_[0]->strategy.in_flight);
    const auto key = [](const Action& action) { return std::tuple(action.kind, action.bucket, action.op); };
    std::ranges::sort(rank.under_way, {}, key);
  }

  // The set of past events identifies a state, in any order; then the cores are the same as well.
  void add(State state) {
    std::string name;
    for (const Rank& rank : state) {
      name += static_cast<char>(rank.ready);
      for (const int32_t next : rank.next) name += static_cast<char>(next);
      for (const Action& action : rank.under_way) {
        name += static_cast<char>(action.kind);
        name += static_cast<char>(action.bucket);
      }
      name += static_cast<char>((rank.control ? 1 : 0) + (rank.control_done ? 2 : 0) + (rank.finished ? 4 : 0));
      name += '|';
    }
    std::vector<Scheduler> cores;
    for (const Rank& rank : state) cores.push_back(rank.core);
    const auto [found, is_new] = seen_.try_emplace(std::move(name), std::move(cores));
    if (is_new) return open_.push_back(std::move(state));
    for (size_t r = 0; r < state.size(); ++r) EXPECT_EQ(found->second[r], state[r].core) << "the order of events shows";
  }

  const int tensors_;
  const std::vector<uint32_t> late_;
  std::vector<std::unique_ptr<Program>> programs_;
  std::vector<std::pair<int32_t, int32_t>> order_;  // bucket, operation
  uint32_t needed_ = 0;                             // tensors with elements
  std::vector<State> open_;
  std::unordered_map<std::string, std::vector<Scheduler>> seen_;
  int64_t ends_ = 0;
  bool control_left_early_ = false;
};

const std::vector<std::string> kOptions = {
    "all_reduce", "bf16: encode@host all_reduce decode@host", "topk:0.5: encode@device all_gather decode@device",
    "topk:0.5: encode@device all_to_all decode@device encode@device all_gather decode@device",
    "topk:0.5: encode@host all_to_all decode@device encode@host all_gather decode@device"};

core::GradientTable table_of(const std::vector<int64_t>& sizes) {
  std::vector<std::pair<int64_t, core::DType>> tensors;
  for (const int64_t size : sizes) tensors.emplace_back(size, core::DType::f32);
  return make_table(tensors);
}

// Different strategies with at most that many buckets, of random options, partitions and orders.
std::vector<core::Strategy> strategies(const core::GradientTable& table, size_t count, size_t most_buckets) {
  std::vector<core::Strategy> all;
  std::set<std::string> names;
  core::Rng rng(1);
  for (int tries = 0; tries < 100'000 && all.size() < count; ++tries) {
    core::Strategy strategy = random_strategy(table, kOptions, rng);
    strategy.in_flight = 1 + static_cast<int>(all.size() % 2);
    if (all.size() % 3 == 2) strategy.buckets[rng.below(strategy.buckets.size())].due = core::Due::forward;
    if (strategy.buckets.size() > most_buckets || !names.insert(std::to_string(core::hash(strategy))).second) continue;
    all.push_back(std::move(strategy));
  }
  EXPECT_EQ(all.size(), count);
  return all;
}

void check_all(const core::GradientTable& table, const std::vector<core::Strategy>& all,
               const std::vector<std::vector<uint32_t>>& lates) {
  size_t states = 0;
  for (size_t s = 0; s < all.size(); ++s) {
    for (const std::vector<uint32_t>& late : lates) {
      SCOPED_TRACE("strategy " + std::to_string(s));
      states += Model(table, all[s], late).explore();
      ASSERT_FALSE(testing::Test::HasFailure());
    }
  }
  testing::Test::RecordProperty("states", static_cast<int>(states));
  EXPECT_GT(states, 0U);
}

// All choices of a set of tensors for each rank.
std::vector<std::vector<uint32_t>> all_lates(int ranks, int tensors) {
  std::vector<std::vector<uint32_t>> all;
  const uint32_t sets = 1U << tensors;
  for (uint32_t choice = 0; choice < 1U << (ranks * tensors); ++choice) {
    std::vector<uint32_t>& late = all.emplace_back();
    for (int r = 0; r < ranks; ++r) late.push_back(choice >> (r * tensors) & (sets - 1));
  }
  return all;
}

TEST(SchedulerModel, TwoRanksThreeBuckets) {
  const core::GradientTable table = table_of({200, 200, 200});
  std::vector<core::Strategy> all = strategies(table, 24, 3);
  for (const std::string& option : {kOptions[0], kOptions[3]}) {
    for (const int in_flight : {1, 2}) {
      all.push_back(make_strategy(table, option, 800, in_flight));   // one for each tensor
      all.push_back(make_strategy(table, option, 1200, in_flight));  // one cuts a tensor
    }
  }
  check_all(table, all, {{0, 0}});
}

TEST(SchedulerModel, ThreeRanksTwoBuckets) {
  const core::GradientTable table = table_of({200, 200});
  check_all(table, strategies(table, 6, 2), {{0, 0, 0}});
}

TEST(SchedulerModel, WhateverRanksDoNotUse) {
  const core::GradientTable table = table_of({200, 200});
  check_all(table, strategies(table, 12, 2), all_lates(2, 2));
  const core::GradientTable three = table_of({200, 100, 200});
  check_all(three, strategies(three, 4, 2), all_lates(2, 3));
  check_all(table, strategies(table, 2, 2), all_lates(3, 2));
}

// Such tensors hold up nothing, so control may leave before they are reported. A rank must know by then what its
// control word says of them.
TEST(SchedulerModel, TensorsWithoutElementsAreNotWaitedFor) {
  const core::GradientTable table = table_of({200, 0, 200});
  for (const core::Strategy& strategy : strategies(table, 6, 2)) {
    for (const std::vector<uint32_t>& late : all_lates(2, 3)) {
      Model model(table, strategy, late);
      model.explore();
      ASSERT_FALSE(testing::Test::HasFailure());
      // Control leaves early unless the tensor is ready before all others can be: late ones wait for early ones.
      const bool may_be_last = std::any_of(late.begin(), late.end(),
                                           [](uint32_t of_rank) { return (of_rank & 2U) != 0 || (of_rank & 5U) == 0; });
      EXPECT_EQ(model.control_left_early(), may_be_last);
    }
  }
}

}  // namespace
}  // namespace gradtune::exec
