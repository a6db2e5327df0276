// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// A against A in real processes: whole tunings of candidates that are the baseline under other names, over a link whose
// rate wobbles by 20 %. Nothing is faster than anything, so whatever is committed is a false commit.
#include <gtest/gtest.h>

#include <cstdio>
#include <cstdlib>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "engine/comm/pacing.h"
#include "tests/engine/exec/gradient_arenas.h"
#include "tests/hooks/gloo_executor.h"
#include "tests/hooks/ranks.h"
#include "tests/tuner/simulated_job.h"
#include "tuner/strategy_file.h"

namespace gradtune::test {
namespace {

using tuner::Command;

constexpr int kSize = 2, kCandidates = 8;
constexpr double kBytesPerSecond = 12e6, kWobble = 0.2;
constexpr int64_t kWobbleNs = 60'000'000;  // about as long as two blocks

// Same buckets, same collectives: only the number that may be under way differs, which is never reached.
policies::Candidate identical(const core::GradientTable& table, int number) {
  return {exec::make_strategy(table, "all_reduce", 1 << 20, 1 + number), "same " + std::to_string(number)};
}

// One rank of a job that does nothing but communicate.
class Job {
 public:
  explicit Job(const Rank& rank)
      : rank_(rank),
        group_(make_group()),
        link_(comm::make_paced_link({.bytes_per_second = kBytesPerSecond}, clock_)),
        groups_(connect(group_->getStore(), rank.rank, kSize, kSize, "identical/")),
        arenas_(table_),
        rng_(core::Rng(17).fork(std::to_string(rank.rank))) {
    for (auto* each : {&groups_.flat, &groups_.control}) *each = comm::make_paced(std::move(*each), link_);
    executor_ = std::make_unique<exec::Executor>(groups_.view(), clock_, exec::ExecutorOptions{.timeout_ms = 20'000},
                                                 [this](bool finite) {
                                                   local_.finite = finite;
                                                   word_ = agreement_->contribute(local_, announced_);
                                                   return std::span<double>(word_);
                                                 });
  }
  ~Job() {
    executor_->stop();
    groups_ = {};
  }

  // A whole tuning; whether something was committed other than the baseline.
  bool tune(uint64_t seed) {
    const policies::Candidate baseline = identical(table_, 0);
    executor_->set_gradients(table_, arenas_.arenas());
    executor_->prepare(0, baseline.strategy).value();
    executor_->run(0);
    agreement_.emplace(0, core::hash(baseline.strategy));
    if (rank_.rank == 0) tuner_ = make_tuner(seed, baseline);
    local_ = {};
    announced_ = {};
    for (int64_t step = 0; step < 2'000; ++step) {
      if (const std::optional<int32_t> slot = one_step(step)) return *slot > 0;
    }
    ADD_FAILURE() << "the tuning did not end";
    return false;
  }

 private:
  std::unique_ptr<tuner::Tuner> make_tuner(uint64_t seed, const policies::Candidate& baseline) const {
    std::vector<policies::Candidate> arms;
    for (int number = 1; number <= kCandidates; ++number) arms.push_back(identical(table_, number));
    const auto make_policy = [arms] {
      return std::make_unique<tuner::ScriptedPolicy>(std::vector<policies::Proposal>{{arms, false}, {arms, true}});
    };
    policies::Knowledge knowledge{.table = table_, .world_size = kSize, .traits = tuner::traits()};
    return std::make_unique<tuner::Tuner>(tuner::TunerOptions{.seed = seed}, make_policy, knowledge,
                                          std::vector{baseline}, std::nullopt);
  }

  // The slot that was committed, if one was.
  std::optional<int32_t> one_step(int64_t step) {
    wobble();
    const int64_t begin_ns = clock_.now_ns();
    bool is_excluded = step == 0;
    executor_->begin_step();
    for (size_t t = 0; t < table_.tensors.size(); ++t) executor_->tensor_ready(static_cast<int32_t>(t));
    executor_->finish_step().value();
    const tuner::Verdict verdict = agreement_->receive(local_, word_).value();
    executor_->settle(verdict.finite).value();
    const Command& command = verdict.command;
    if (command.kind == Command::Kind::prepare) {
      receive(command);
      is_excluded = true;
    }
    if (command.kind == Command::Kind::drop) executor_->drop(command.slot);
    if (command.kind == Command::Kind::run) executor_->run(command.slot);
    if (command.kind == Command::Kind::commit) return command.slot;
    if (tuner_) announce(tuner_->on_step(verdict.report));
    local_ = {.step = step,
              .step_ms = static_cast<double>(clock_.now_ns() - begin_ns) * 1e-6,
              .rank = rank_.rank,
              .excluded = is_excluded};
    return std::nullopt;
  }

  void announce(const tuner::Action& action) {
    announced_ = action.command;
    if (announced_.kind != Command::Kind::prepare) return;
    text_ = tuner::to_json(
        tuner::strategy_file(table_, kSize, core::Fidelity::half, action.candidate->label, action.candidate->strategy));
    announced_.bytes = static_cast<int64_t>(text_.size());
  }

  void receive(const Command& command) {
    text_.resize(static_cast<size_t>(command.bytes));
    comm::run(*groups_.control, {.kind = comm::Collective::Kind::broadcast,
                                 .out = reinterpret_cast<std::byte*>(text_.data()),
                                 .count = command.bytes,
                                 .timeout_ms = 20'000})
        .value();
    const core::Strategy strategy = tuner::parse_strategy(text_, compress::known_traits()).value().strategy;
    executor_->prepare(command.slot, strategy).value();
    agreement_->prepared(command.slot, core::hash(strategy));
  }

  // Of this rank's own link, so that now one rank holds up the other and now the other way round.
  void wobble() {
    if (clock_.now_ns() < next_wobble_ns_) return;
    next_wobble_ns_ = clock_.now_ns() + kWobbleNs;
    comm::set_speed(*link_, {.bytes_per_second = kBytesPerSecond * (1 + kWobble * (2 * rng_.uniform() - 1))});
  }

  const Rank rank_;
  const core::SteadyClock clock_;
  const core::GradientTable table_ = exec::make_table({{8'000, core::DType::f32}, {2'000, core::DType::f32}});
  const c10::intrusive_ptr<c10d::ProcessGroup> group_;
  const std::shared_ptr<comm::PacedLink> link_;
  exec::RankGroups groups_;
  exec::GradientArenas arenas_;
  core::Rng rng_;
  std::unique_ptr<exec::Executor> executor_;
  std::optional<tuner::Agreement> agreement_;
  std::unique_ptr<tuner::Tuner> tuner_;  // rank 0
  tuner::LocalStep local_;
  tuner::ControlWord word_{};
  Command announced_;
  std::string text_;
  int64_t next_wobble_ns_ = 0;
};

// Of 40 tunings 4: the probability of a false commit is at most 5 % each, so that more than 4 have one of 5 %.
TEST(Identical, CandidatesAreSeldomCommitted) {
  const char* const wanted = std::getenv("TUNINGS");
  const int tunings = wanted != nullptr ? std::atoi(wanted) : 2;
  const auto body = [&](const Rank& rank) {
    Job job(rank);
    int committed = 0;
    for (int t = 0; t < tunings; ++t) committed += job.tune(static_cast<uint64_t>(t)) ? 1 : 0;
    std::printf("%d of %d tunings committed\n", committed, tunings);
    EXPECT_LE(committed, std::max(1, tunings / 10));
  };
  const auto ends = start_ranks(kSize, body, {.time_limit_s = 1500});
  for (const RankEnd& end : ends) {
    EXPECT_TRUE(end.exit_code == 0 && end.in_time) << end.output;
    const size_t at = end.output.find(" tunings committed");
    ASSERT_NE(at, end.output.npos) << end.output;
    const size_t begin = end.output.rfind('\n', at) + 1;
    std::printf("%s tunings committed\n", end.output.substr(begin, at - begin).c_str());
  }
}

}  // namespace
}  // namespace gradtune::test
