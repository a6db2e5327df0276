// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// An exhaustive search, breadth first, over everything that can happen between 2 to 4 ranks within a few steps. Rank
// 0 announces any legal command. Ranks answer a preparation at any time, with success, failure, or (one of them,
// once) with a strategy other than the one sent. They enter and leave each control collective in any order.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <deque>
#include <limits>
#include <optional>
#include <unordered_set>
#include <utility>
#include <vector>

#include "engine/core/hash.h"
#include "tuner/agreement.h"

namespace gradtune::tuner {
namespace {

using Kind = Command::Kind;

constexpr int32_t kMostSlots = 3;

constexpr uint64_t sent_hash(int32_t slot) { return 1000 + static_cast<uint64_t>(slot); }
constexpr uint64_t wrong_hash(int32_t slot) { return 2000 + static_cast<uint64_t>(slot); }

struct Preparing {
  int32_t slot;
  bool is_answered = false;
  uint64_t hash = 0;  // 0: failed
};

struct Rank {
  Agreement agreement{0, sent_hash(0)};
  std::array<uint64_t, kMostSlots> held = {sent_hash(0)};  // the strategy that it would really run, by slot
  std::optional<Preparing> preparing;                      // until all ranks have answered
  int64_t step = 0;
  bool is_posted = false;  // its word of this step
  bool has_error = false;  // it does not run any more
  ControlWord word{};
};

// The strategy that a rank runs in a step.
struct Ran {
  int64_t step, epoch;
  int32_t slot;
  uint64_t hash;
  bool operator==(const Ran&) const = default;
};

struct World {
  std::vector<Rank> ranks;
  ControlWord reduced{};
  int64_t reduced_step = -1;
  std::array<std::optional<Ran>, 2> ran;        // in even and odd steps: ranks are at most one step apart
  std::array<bool, kMostSlots> ready = {true};  // as rank 0 knows it from reports
  std::optional<int32_t> asked;                 // prepare announced; rank 0 does not know the outcome
  int32_t next_slot = 1;
  bool wrong_left = true;
  bool has_conflict = false;  // the last reduced words hold two hashes for one slot

  uint64_t key() const {
    core::Hasher hasher;
    for (const Rank& rank : ranks) {
      hasher.add(rank.agreement.identity());
      hasher.add(static_cast<uint64_t>(rank.step * 4 + (rank.is_posted ? 1 : 0) + (rank.has_error ? 2 : 0)));
      hasher.add(rank.preparing ? static_cast<uint64_t>(rank.preparing->slot) + 1 : 0);
      hasher.add(rank.preparing && rank.preparing->is_answered ? 1 : 0);
      for (double value : rank.is_posted ? rank.word : rank.agreement.contribute({}, {})) {
        hasher.add(static_cast<uint64_t>(static_cast<int64_t>(value)));
      }
      for (uint64_t hash : rank.held) hasher.add(hash);
    }
    hasher.add(static_cast<uint64_t>(reduced_step));
    for (bool is_ready : ready) hasher.add(is_ready ? 1 : 0);
    hasher.add(asked ? static_cast<uint64_t>(*asked) + 1 : 0);
    hasher.add(static_cast<uint64_t>(next_slot * 4 + (wrong_left ? 1 : 0) + (has_conflict ? 2 : 0)));
    return hasher.value();
  }
};

class Model {
 public:
  Model(int ranks, int64_t steps, int32_t most_slots) : steps_(steps), most_slots_(most_slots) {
    World start;
    start.ranks.resize(static_cast<size_t>(ranks));
    for (size_t r = 0; r < start.ranks.size(); ++r) begin_step(start, r);
    reach(std::move(start));
  }

  void search() {
    for (; !queue_.empty() && !::testing::Test::HasFailure(); queue_.pop_front()) expand(queue_.front());
  }

  size_t states() const { return seen_.size(); }
  int switches = 0, failures = 0, errors = 0;

 private:
  void reach(World world) {
    if (seen_.insert(world.key()).second) queue_.push_back(std::move(world));
  }

  void expand(const World& world) {
    for (size_t r = 0; r < world.ranks.size(); ++r) {
      const Rank& rank = world.ranks[r];
      if (rank.has_error || rank.step >= steps_) continue;
      if (rank.is_posted) {
        if (world.reduced_step == rank.step) receive(world, r);
        continue;
      }
      for (const Command& command : r == 0 ? commands(world) : std::vector<Command>{Command{}}) post(world, r, command);
      if (rank.preparing && !rank.preparing->is_answered) answer(world, r);
    }
  }

  // Invariant: all ranks run the same epoch, slot and strategy in a step.
  static void begin_step(World& world, size_t r) {
    const Rank& rank = world.ranks[r];
    const int32_t slot = rank.agreement.slot();
    const Ran ran{rank.step, rank.agreement.epoch(), slot, rank.held[static_cast<size_t>(slot)]};
    std::optional<Ran>& first = world.ran[static_cast<size_t>(rank.step % 2)];
    if (!first || first->step != rank.step) first = ran;
    EXPECT_TRUE(*first == ran) << "rank " << r << " in step " << rank.step;
  }

  // The commands that the tuner may give: it runs slots that are reported as prepared, or are being prepared.
  std::vector<Command> commands(const World& world) const {
    std::vector<Command> commands = {Command{}};
    const int32_t in_force = world.ranks[0].agreement.slot();
    for (int32_t slot = 0; slot < kMostSlots; ++slot) {
      if (!world.ready[static_cast<size_t>(slot)]) continue;
      commands.push_back({Kind::run, slot, 0});
      if (slot != in_force) commands.push_back({Kind::drop, slot, 0});
    }
    if (world.asked) {
      commands.push_back({Kind::run, *world.asked, 0});
      commands.push_back({Kind::drop, *world.asked, 0});
    }
    if (world.next_slot < most_slots_) commands.push_back({Kind::prepare, world.next_slot, 10});
    return commands;
  }

  void post(World world, size_t r, const Command& command) {
    Rank& rank = world.ranks[r];
    rank.word = rank.agreement.contribute({.step = rank.step}, command);
    rank.is_posted = true;
    if (r == 0 && command.kind == Kind::prepare) world.asked = world.next_slot++;
    if (r == 0 && command.kind == Kind::drop) {
      world.ready[static_cast<size_t>(command.slot)] = false;
      if (world.asked == command.slot) world.asked.reset();
    }
    const auto all_posted = [&](const Rank& other) { return other.is_posted && other.step == rank.step; };
    if (std::all_of(world.ranks.begin(), world.ranks.end(), all_posted)) reduce(world);
    reach(std::move(world));
  }

  static void reduce(World& world) {
    world.reduced.fill(-std::numeric_limits<double>::infinity());
    uint64_t answered = 0;
    world.has_conflict = false;
    for (const Rank& rank : world.ranks) {
      for (size_t i = 0; i < rank.word.size(); ++i) world.reduced[i] = std::max(world.reduced[i], rank.word[i]);
      if (!rank.preparing || rank.preparing->hash == 0) continue;
      if (answered != 0 && answered != rank.preparing->hash) world.has_conflict = true;
      answered = rank.preparing->hash;
    }
    world.reduced_step = world.ranks[0].step;
  }

  void answer(const World& world, size_t r) {
    const int32_t slot = world.ranks[r].preparing->slot;
    for (uint64_t hash : {uint64_t{0}, sent_hash(slot), wrong_hash(slot)}) {
      World next = world;
      Rank& rank = next.ranks[r];
      if (hash == wrong_hash(slot) && !std::exchange(next.wrong_left, false)) continue;
      rank.agreement.prepared(slot, hash == 0 ? std::nullopt : std::optional(hash));
      rank.preparing = Preparing{slot, true, hash};
      if (hash != 0) rank.held[static_cast<size_t>(slot)] = hash;
      reach(std::move(next));
    }
  }

  void receive(World world, size_t r) {
    Rank& rank = world.ranks[r];
    const auto verdict = rank.agreement.receive({.step = rank.step}, world.reduced);
    EXPECT_EQ(world.has_conflict, !verdict.ok()) << "rank " << r << " in step " << rank.step;
    rank.is_posted = false;
    if (!verdict.ok()) {
      ++errors;
      EXPECT_EQ(core::Error::Code::mismatch, verdict.error().code);
      rank.has_error = true;
      return reach(std::move(world));
    }
    const Command& command = verdict.value().command;
    const core::StepReport& report = verdict.value().report;
    switches += command.kind == Kind::run ? 1 : 0;
    failures += report.failed ? 1 : 0;
    if (report.prepared || report.failed) rank.preparing.reset();
    if (command.kind == Kind::prepare) rank.preparing = Preparing{command.slot};
    if (r == 0 && world.asked && command.kind != Kind::prepare && (report.prepared || report.failed)) {
      world.ready[static_cast<size_t>(*world.asked)] = report.prepared;
      world.asked.reset();
    }
    ++rank.step;
    begin_step(world, r);
    reach(std::move(world));
  }

  const int64_t steps_;
  const int32_t most_slots_;
  std::unordered_set<uint64_t> seen_;
  std::deque<World> queue_;
};

void check_all_schedules(int ranks, int64_t steps, int32_t most_slots) {
  Model model(ranks, steps, most_slots);
  model.search();
  testing::Test::RecordProperty("states", static_cast<int>(model.states()));
  EXPECT_GT(model.switches, 0);
  EXPECT_GT(model.failures, 0);
  EXPECT_GT(model.errors, 0);
}

TEST(AgreementModel, TwoRanks) { check_all_schedules(2, 6, 3); }
TEST(AgreementModel, ThreeRanks) { check_all_schedules(3, 5, 2); }
TEST(AgreementModel, FourRanks) { check_all_schedules(4, 3, 2); }

}  // namespace
}  // namespace gradtune::tuner
