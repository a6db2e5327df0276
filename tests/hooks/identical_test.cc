// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// Tests A against A in real processes: whole tunings of candidates that equal the baseline under other names. They
// run over a link whose rate wobbles by 20 %, and on two cores that others load in bursts. No candidate is faster,
// so every commit is a false commit, and an interval of a gain that excludes 0 is wrong.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "engine/comm/pacing.h"
#include "tests/engine/exec/gradient_arenas.h"
#include "tests/hooks/burst_load.h"
#include "tests/hooks/gloo_executor.h"
#include "tests/hooks/ranks.h"
#include "tests/tuner/simulated_job.h"
#include "tuner/files/strategy_file.h"

namespace gradtune::test {
namespace {

using tuner::Command;

constexpr int kSize = 2, kCandidates = 8;
constexpr double kWobble = 0.2;
constexpr int64_t kWobbleNs = 60'000'000;  // about as long as two blocks

struct Kind {
  std::vector<int64_t> tensors;
  double bytes_per_second = 0;  // of a link that wobbles; 0: the machine's own
  int64_t rounds = 0;           // rounds of computation in a step; a million take 1 to 2 ms
  int longer = 1;               // factor for the computation in every other tuning
  // Bucket size of a second baseline, which takes longer with more buckets; 0: there is none.
  int64_t bucket_bytes = 0;
};
const Kind kOverALink{.tensors = {8'000, 2'000}, .bytes_per_second = 12e6};
// Steps of 2 to 4 ms and of about 20, on a machine that is otherwise idle.
const Kind kOnSharedCores{.tensors = {40'000, 10'000}, .rounds = 1'000'000, .longer = 10};
// About 20 ms, and a quarter more for the second baseline's collectives.
const Kind kWithASlowerBaseline{.tensors = {40'000, 10'000}, .rounds = 8'000'000, .bucket_bytes = 1 << 11};

// The result of a tuning: a gain is claimed for a committed strategy, and the interval also exists for others.
struct Tuning {
  bool committed = false;
  double gain = 0, low = 0, high = 0;  // two-sided 95 %
  int pairs = 0;                       // 0: nothing had to be confirmed
  double step_ms = 0;                  // of the baseline
  bool is_against_slower = false;
  bool is_wrong() const { return pairs > 0 && (low > 0 || high < 0); }
};

// Same buckets, same collectives: only the limit on collectives in flight differs, which is never reached.
policies::Candidate identical(const core::GradientTable& table, int number) {
  return {exec::make_strategy(table, "all_reduce", 1 << 20, 1 + number), "same " + std::to_string(number)};
}

core::GradientTable table_of(const Kind& kind) {
  std::vector<std::pair<int64_t, core::DType>> tensors;
  for (const int64_t elements : kind.tensors) tensors.emplace_back(elements, core::DType::f32);
  return exec::make_table(tensors);
}

// One rank of a job that learns nothing.
class Job {
 public:
  Job(const Rank& rank, const Kind& kind)
      : rank_(rank),
        kind_(kind),
        table_(table_of(kind)),
        group_(make_group()),
        groups_(connect(group_->getStore(), rank.rank, kSize, kSize, "identical/")),
        arenas_(table_),
        rng_(core::Rng(17).fork(std::to_string(rank.rank))) {
    if (kind.bytes_per_second > 0) {
      link_ = comm::make_paced_link({.bytes_per_second = kind.bytes_per_second}, clock_);
      for (auto* each : {&groups_.flat, &groups_.control}) *each = comm::make_paced(std::move(*each), link_);
    }
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

  // A whole tuning. Only rank 0 knows more than the outcome.
  Tuning tune(uint64_t seed) {
    rounds_ = kind_.rounds * (seed % 2 == 1 ? kind_.longer : 1);
    tuning_ = {};
    std::vector<policies::Candidate> baselines = {identical(table_, 0)};
    if (kind_.bucket_bytes > 0) {
      baselines.push_back({exec::make_strategy(table_, "all_reduce", kind_.bucket_bytes, 1), "slower"});
    }
    executor_->set_gradients(table_, arenas_.arenas());
    agreement_.emplace(0, core::hash(baselines[0].strategy));
    for (size_t b = 0; b < baselines.size(); ++b) {
      executor_->prepare(static_cast<int32_t>(b), baselines[b].strategy).value();
      agreement_->prepared(static_cast<int32_t>(b), core::hash(baselines[b].strategy));
    }
    executor_->run(0);
    if (rank_.rank == 0) tuner_ = make_tuner(seed, baselines);
    local_ = {};
    announced_ = {};
    for (int64_t step = 0; step < 2'000; ++step) {
      if (const std::optional<int32_t> slot = one_step(step)) {
        tuning_.committed = *slot >= static_cast<int32_t>(baselines.size());
        return tuning_;
      }
    }
    ADD_FAILURE() << "the tuning did not end";
    return tuning_;
  }

 private:
  std::unique_ptr<tuner::Tuner> make_tuner(uint64_t seed, const std::vector<policies::Candidate>& baselines) const {
    std::vector<policies::Candidate> arms;
    for (int number = 1; number <= kCandidates; ++number) arms.push_back(identical(table_, number));
    const auto make_policy = [arms] {
      return std::make_unique<tuner::ScriptedPolicy>(std::vector<policies::Proposal>{{arms, false}, {arms, true}});
    };
    policies::Knowledge knowledge{.table = table_, .ranks = {.size = kSize}, .traits = tuner::traits()};
    return std::make_unique<tuner::Tuner>(tuner::TunerOptions{.seed = seed}, make_policy, knowledge, baselines,
                                          std::nullopt);
  }

  // The slot that was committed, if one was.
  std::optional<int32_t> one_step(int64_t step) {
    wobble();
    const int64_t begin_ns = clock_.now_ns();
    bool is_excluded = step == 0;
    executor_->begin_step().value();
    for (size_t t = 0; t < table_.tensors.size(); ++t) {
      compute(rounds_ / static_cast<int64_t>(table_.tensors.size()));
      executor_->tensor_ready(static_cast<int32_t>(t));
    }
    executor_->finish_backward().value();
    const tuner::Verdict verdict = agreement_->receive(local_, word_).value();
    executor_->conclude(verdict.finite).value();
    const Command& command = verdict.command;
    if (command.kind == Command::Kind::prepare) {
      receive(command);
      is_excluded = true;
    }
    if (command.kind == Command::Kind::drop) executor_->drop(command.slot);
    if (command.kind == Command::Kind::run) executor_->run(command.slot);
    if (command.kind == Command::Kind::commit) return command.slot;
    if (tuner_) {
      announce(tuner_->on_step(verdict.report));
      note_decisions();
    }
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

  void note_decisions() {
    for (const tuner::Decision& decision : tuner_->take_decisions()) {
      using What = tuner::Decision::What;
      if (decision.what == What::baseline) {
        tuning_.step_ms = decision.value;
        tuning_.is_against_slower = decision.label == "slower";
      }
      if (decision.what == What::confirm) tuning_.pairs = static_cast<int>(decision.value);
      if (decision.what == What::gain_at_least) tuning_.low = decision.value;
      if (decision.what == What::gain_at_most) tuning_.high = decision.value;
      if (decision.what == What::commit) tuning_.gain = decision.value;
    }
  }

  // Always runs the same number of instructions, so that it takes longer if others compute.
  void compute(int64_t rounds) {
    for (int64_t round = 0; round < rounds; ++round) computed_ = computed_ * 0.999 + 1.0;
  }

  // Changes the rate of this rank's own link, so that the ranks hold up each other in turn.
  void wobble() {
    if (!link_ || clock_.now_ns() < next_wobble_ns_) return;
    next_wobble_ns_ = clock_.now_ns() + kWobbleNs;
    comm::set_speed(*link_, {.bytes_per_second = kind_.bytes_per_second * (1 + kWobble * (2 * rng_.uniform() - 1))});
  }

  const Rank rank_;
  const Kind kind_;
  const core::SteadyClock clock_;
  const core::GradientTable table_;
  const c10::intrusive_ptr<c10d::ProcessGroup> group_;
  std::shared_ptr<comm::PacedLink> link_;  // none for the machine's own link
  exec::RankGroups groups_;
  exec::GradientArenas arenas_;
  core::Rng rng_;
  std::unique_ptr<exec::Executor> executor_;
  std::optional<tuner::Agreement> agreement_;
  std::unique_ptr<tuner::Tuner> tuner_;  // on rank 0
  tuner::LocalStep local_;
  tuner::ControlWord word_{};
  Command announced_;
  std::string text_;
  int64_t next_wobble_ns_ = 0;
  int64_t rounds_ = 0;
  double computed_ = 1;
  Tuning tuning_;
};

// The number of tunings from the environment, or a few. Rank 0 prints those in which something had to be confirmed.
int wanted_tunings(int otherwise) {
  const char* const wanted = std::getenv("TUNINGS");
  return wanted != nullptr ? std::atoi(wanted) : otherwise;
}

std::vector<Tuning> tune(const Rank& rank, const Kind& kind, int tunings) {
  Job job(rank, kind);
  std::vector<Tuning> all;
  for (int t = 0; t < tunings; ++t) {
    const Tuning tuning = all.emplace_back(job.tune(static_cast<uint64_t>(t)));
    if (tuning.pairs == 0) continue;
    std::printf("tuning %d: steps of %.1f ms, %d pairs, %s, gain %.1f %% [%.1f, %.1f]\n", t, tuning.step_ms,
                tuning.pairs, tuning.committed ? "COMMITTED" : "not committed", 100 * tuning.gain, 100 * tuning.low,
                100 * tuning.high);
    std::fflush(stdout);
  }
  return all;
}

void expect_good_ends(const std::vector<RankEnd>& ends) {
  for (const RankEnd& end : ends) EXPECT_TRUE(end.exit_code == 0 && end.in_time) << end.output;
  const std::string& told = ends[0].output;
  for (size_t at = told.find("tuning"); at != told.npos;) {
    const size_t end = std::min(told.find('\n', at), told.size());
    std::printf("%s\n", told.substr(at, end - at).c_str());
    at = told.find("\ntuning", end);
    if (at != told.npos) ++at;
  }
}

// At most 4 of 40 tunings: a false commit has a probability of at most 5 % each, so more than 4 have one of 5 %.
TEST(Identical, CandidatesAreSeldomCommitted) {
  const int tunings = wanted_tunings(2);
  const auto body = [&](const Rank& rank) {
    const std::vector<Tuning> all = tune(rank, kOverALink, tunings);
    const auto committed = std::ranges::count_if(all, &Tuning::committed);
    std::printf("tunings: %d, committed %d\n", tunings, static_cast<int>(committed));
    EXPECT_LE(committed, std::max(1, tunings / 10));
  };
  expect_good_ends(start_ranks(kSize, body, {.time_limit_s = 1500}));
}

// At most 3 of 60 tunings commit, which is the promised 5 %. A wrong interval has a probability of at most 5 % each;
// the limit on wrong intervals is exceeded with a probability of 1 %.
void expect_few_false_commits_in_bursts(const Kind& kind) {
  const int tunings = wanted_tunings(2);
  const auto body = [&](const Rank& rank) {
    const std::vector<Tuning> all = tune(rank, kind, tunings);
    const auto count = [&](auto is) { return static_cast<int>(std::ranges::count_if(all, is)); };
    const int committed = count([](const Tuning& tuning) { return tuning.committed; });
    const int confirmations = count([](const Tuning& tuning) { return tuning.pairs > 0; });
    const int wrong = count([](const Tuning& tuning) { return tuning.is_wrong(); });
    std::printf("tunings: %d, with a confirmation %d, committed %d, intervals without 0 %d, against the slower %d\n",
                tunings, confirmations, committed, wrong,
                count([](const Tuning& tuning) { return tuning.is_against_slower; }));
    EXPECT_LE(committed, std::max(1, tunings / 20));
    const double expected = 0.05 * confirmations;
    EXPECT_LE(wrong, 1 + expected + 2.33 * std::sqrt(expected * 0.95));
  };
  const double time_limit_s = 100 + 60.0 * tunings;
  std::optional<BurstLoad> load;
  if (!is_rank()) {
    confine_to_cores(kSize);
    load.emplace(kSize, 1, time_limit_s);
  }
  expect_good_ends(start_ranks(kSize, body, {.time_limit_s = time_limit_s}));
}

TEST(Identical, CandidatesAreSeldomCommittedOnCoresThatOthersLoadInBursts) {
  expect_few_false_commits_in_bursts(kOnSharedCores);
}

// A burst sometimes makes the slower baseline look like the faster one. Then all candidates are truly faster than
// that; still there is nothing to gain.
TEST(Identical, CandidatesAreAsSeldomCommittedWhereABaselineIsSlowerAndOthersLoadInBursts) {
  expect_few_false_commits_in_bursts(kWithASlowerBaseline);
}

}  // namespace
}  // namespace gradtune::test
