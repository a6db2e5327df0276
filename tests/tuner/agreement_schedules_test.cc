// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// Random schedules of up to 64 ranks, by seed. Preparations take any time on each rank, succeed, fail, are answered
// twice, or are answered after they were taken back. A rank crashes before a control collective, or in it, so that
// it completes on some ranks only. A rank receives a different strategy. SCHEDULES is the number of schedules (the
// long test: 10^6).
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <limits>
#include <map>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include "engine/core/rng.h"
#include "tuner/agreement.h"

namespace gradtune::tuner {
namespace {

using Kind = Command::Kind;

constexpr int kSteps = 24;
constexpr int kMostDelay = 4;                  // steps that a rank takes to prepare
constexpr int kSettled = kMostDelay + 2;       // steps after which a preparation has ended on all ranks
constexpr int kMostRanksLog2 = 6;              // 64
constexpr double kCrash = 0.02, kWrong = 0.3;  // probability per step; per schedule

uint64_t hash_of(int32_t slot) { return 7000 + static_cast<uint64_t>(slot); }

class World {
 public:
  explicit World(uint64_t seed) : rng_(seed) {
    const auto ranks = static_cast<size_t>(std::exp2(1 + (kMostRanksLog2 - 1) * rng_.uniform()));
    ranks_.assign(std::min<size_t>(ranks + 1, 64), Rank{});
    if (rng_.uniform() < kWrong) wrong_rank_ = rng_.below(ranks_.size());
  }

  void run() {
    for (step_ = 0; step_ < kSteps && !is_over_; ++step_) one_step();
  }

  int switches = 0, failed = 0, mismatches = 0, crashes = 0;

 private:
  struct Rank {
    Agreement agreement{0, hash_of(0)};
    std::map<int32_t, uint64_t> held = {{0, hash_of(0)}};  // the strategies that it would run
    struct Answer {
      int at;
      int32_t slot;
      std::optional<uint64_t> hash;
    };
    std::vector<Answer> answers;  // in transit
  };

  void one_step() {
    all_run_the_same();
    for (Rank& rank : ranks_) answer(rank);
    const bool crashes_now = rng_.uniform() < kCrash;
    if (crashes_now && rng_.uniform() < 0.5) return crash();  // before the collective, which completes nowhere
    const Command announced = command();
    ControlWord reduced;
    reduced.fill(-std::numeric_limits<double>::infinity());
    for (size_t r = 0; r < ranks_.size(); ++r) {
      const ControlWord word = ranks_[r].agreement.contribute({.step = step_}, r == 0 ? announced : Command{});
      for (size_t i = 0; i < word.size(); ++i) reduced[i] = std::max(reduced[i], word[i]);
    }
    size_t completes = ranks_.size();
    if (crashes_now) {
      std::vector<size_t> order(ranks_.size());
      for (size_t r = 0; r < order.size(); ++r) order[r] = r;
      rng_.shuffle(order);
      completes = rng_.below(order.size());
      std::vector<Rank> reached;
      for (size_t i = 0; i < completes; ++i) reached.push_back(std::move(ranks_[order[i]]));
      ranks_ = std::move(reached);  // the others learn of the crash here, and end
    }
    int errors = 0;
    for (Rank& rank : ranks_) errors += receive(rank, reduced) ? 0 : 1;
    ASSERT_TRUE(errors == 0 || errors == static_cast<int>(ranks_.size())) << "an error is found by all or by none";
    if (errors > 0) {
      ++mismatches;
      is_over_ = true;
    } else if (crashes_now) {
      all_run_the_same();  // they begin the next step, and their next collective ends them
      crash();
    }
  }

  void crash() {
    ++crashes;
    is_over_ = true;
  }

  // The invariant: epoch, slot and strategy.
  void all_run_the_same() const {
    if (ranks_.empty()) return;
    const Agreement& first = ranks_[0].agreement;
    for (const Rank& rank : ranks_) {
      ASSERT_EQ(rank.agreement.epoch(), first.epoch()) << "step " << step_;
      ASSERT_EQ(rank.agreement.slot(), first.slot()) << "step " << step_;
      ASSERT_EQ(rank.held.at(first.slot()), ranks_[0].held.at(first.slot())) << "step " << step_;
    }
  }

  void answer(Rank& rank) {
    rng_.shuffle(rank.answers);  // answers of one step come in any order
    std::erase_if(rank.answers, [&](const Rank::Answer& answer) {
      if (answer.at > step_) return false;
      rank.agreement.prepared(answer.slot, answer.hash);
      if (answer.hash && !rank.held.contains(answer.slot)) rank.held[answer.slot] = *answer.hash;
      if (answer.hash && rng_.uniform() < 0.1) rank.agreement.prepared(answer.slot, answer.hash);
      return true;
    });
  }

  // A command that a tuner may give; it may also run a slot that is not prepared everywhere yet.
  Command command() {
    const double what = rng_.uniform();
    const auto known = [&] { return *std::next(slots_.begin(), static_cast<long>(rng_.below(slots_.size()))); };
    if (what < 0.35) {
      const int32_t slot = next_slot_++;
      slots_.insert(slot);
      prepare_step_ = step_;
      preparing_ = slot;
      return {Kind::prepare, slot, 64};
    }
    if (what < 0.65) return {rng_.uniform() < 0.8 ? Kind::run : Kind::commit, known(), 0};
    if (what < 0.75) {
      const int32_t slot = known();
      if (slot == ranks_[0].agreement.slot()) return {};
      slots_.erase(slot);
      if (preparing_ == slot) preparing_.reset();
      return {Kind::drop, slot, 0};
    }
    return {};
  }

  bool receive(Rank& rank, const ControlWord& reduced) {
    const auto verdict = rank.agreement.receive({.step = step_}, reduced);
    if (!verdict.ok()) {
      EXPECT_EQ(verdict.error().code, core::Error::Code::mismatch);
      EXPECT_TRUE(wrong_rank_) << verdict.error().message;
      return false;
    }
    const Command& command = verdict.value().command;
    const bool is_first = &rank == &ranks_[0];
    if (command.kind == Kind::prepare) {
      const size_t r = static_cast<size_t>(&rank - ranks_.data());
      const bool is_wrong = wrong_rank_ == r && rng_.uniform() < 0.5;
      const bool fails = rng_.uniform() < 0.2 / static_cast<double>(ranks_.size());
      const int at = step_ + 1 + static_cast<int>(rng_.below(kMostDelay));
      const uint64_t hash = hash_of(command.slot) + (is_wrong ? 1 : 0);
      rank.answers.push_back({at, command.slot, fails ? std::nullopt : std::optional(hash)});
    }
    if (command.kind == Kind::drop) rank.held.erase(command.slot);
    if (!is_first) return true;
    switches += command.kind == Kind::run || command.kind == Kind::commit ? 1 : 0;
    failed += verdict.value().report.failed ? 1 : 0;
    if (verdict.value().report.prepared || verdict.value().report.failed) preparing_.reset();
    EXPECT_FALSE(preparing_ && step_ > prepare_step_ + kSettled) << "a preparation that does not end";
    return true;
  }

  core::Rng rng_;
  std::vector<Rank> ranks_;
  std::optional<size_t> wrong_rank_;
  int step_ = 0;
  bool is_over_ = false;
  std::set<int32_t> slots_ = {0};  // slots that rank 0 may name
  int32_t next_slot_ = 1;
  std::optional<int32_t> preparing_;
  int prepare_step_ = 0;
};

TEST(AgreementSchedules, NoStepIsMixedWhateverHappens) {
  const char* const wanted = std::getenv("SCHEDULES");
  const uint64_t schedules = wanted != nullptr ? std::strtoull(wanted, nullptr, 10) : 2'000;
  int switches = 0, failed = 0, mismatches = 0, crashes = 0;
  for (uint64_t seed = 0; seed < schedules; ++seed) {
    SCOPED_TRACE(seed);
    World world(seed);
    world.run();
    if (HasFatalFailure() || HasNonfatalFailure()) return;
    switches += world.switches;
    failed += world.failed;
    mismatches += world.mismatches;
    crashes += world.crashes;
  }
  RecordProperty("switches", switches);
  EXPECT_GT(switches, static_cast<int>(schedules));
  EXPECT_GT(failed, static_cast<int>(schedules / 100));
  EXPECT_GT(mismatches, static_cast<int>(schedules / 100));
  EXPECT_GT(crashes, static_cast<int>(schedules / 10));
}

}  // namespace
}  // namespace gradtune::tuner
