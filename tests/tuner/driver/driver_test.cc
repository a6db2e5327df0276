// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// Tests the driver of rank 0 on one rank, whose step protocol is real and whose strategies take a known time. The
// word of that rank is the word of all. tests/sim runs the same driver with real compression and several ranks.
#include "tuner/driver/driver.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>

#include <algorithm>
#include <csignal>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "engine/compress/compressor.h"
#include "engine/exec/workspace.h"
#include "policies/space/baseline.h"
#include "tests/engine/exec/gradient_arenas.h"
#include "tests/temp_folder.h"
#include "tests/tuner/kept_strategies.h"
#include "tests/tuner/recorded_audience.h"
#include "tuner/files/journal_reader.h"
#include "tuner/files/strategy_file.h"

namespace gradtune::tuner {
namespace {

using testing::AllOf;
using testing::Each;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;
using testing::SizeIs;
using What = Decision::What;

class StillClock final : public core::Clock {
 public:
  int64_t now_ns() const override { return 0; }
};

core::GradientTable table() {
  return exec::make_table({{100, core::DType::f32}, {60'000, core::DType::f32}, {90'000, core::DType::f32}});
}

Job tuned_job() {
  return {.table = table(),
          .ranks = {.size = 2},
          .fidelity = core::Fidelity::lossy,
          .codecs = {{"none"}, {"bf16"}, {"topk", 0.01}},
          .policy = "mergecomp",
          .tuning = {.seed = 5}};
}

bool is_lossy(const core::Strategy& strategy) {
  return core::needed_fidelity(strategy, compress::known_traits()) == core::Fidelity::lossy;
}

double step_ms_of(const core::Strategy& strategy) {
  const double sent_ms = is_lossy(strategy) ? 10 : 100;
  return 50 + sent_ms + static_cast<double>(strategy.buckets.size());
}

// A compiled strategy, with times of its operations in a step.
struct TimedProgram {
  explicit TimedProgram(const core::Strategy& strategy) {
    exec::Workspace workspace(core::seat(0, 2, 2), /*seed=*/0);
    workspace.set_gradients(table(), arenas.arenas());
    program = std::move(workspace.compile(0, strategy)).value();
    times.assign(static_cast<size_t>(program->ops), {.begin_ns = 2'000, .end_ns = 5'000});
    unknown.resize(times.size());
  }
  exec::GradientArenas arenas{table()};
  std::unique_ptr<exec::Program> program;
  std::vector<exec::OpTime> times, unknown;  // of a device that does not know them
};

// Rank 0 of a job, from its first step.
class LedRank {
 public:
  explicit LedRank(DriverOptions options)
      : driver(std::move(options), clock_, audience), protocol(runner, 0, {}, &read_candidate) {}

  void start(std::optional<policies::Candidate> imported = {}) {
    const Job job = tuned_job();
    Candidates ready;
    for (const policies::Candidate& each : policies::baselines(job.table, job.fidelity)) {
      ready[static_cast<int32_t>(ready.size())] = each;
    }
    if (imported) ready[kImportedSlot] = *imported;
    protocol.start(ready, imported ? kImportedSlot : 0, /*is_committed=*/false);
    driver.start(job.table, std::move(imported));
  }

  Action step() {
    protocol.begin(0);
    protocol.control_word(/*finite=*/true);
    const StepProtocol::Received received = protocol.receive().value();
    const std::string text = protocol.announced_text();
    if (protocol.carry_out(received.command) > 0) static_cast<void>(protocol.receive_strategy(text));
    Action action = driver.on_step(received, protocol);
    protocol.announce(action.command, driver.text_of(action));
    protocol.end_step({.step_ms = step_ms_of(runner.strategy()), .compute_ms = 50, .comm_ms = 0});
    return action;
  }
  void steps(int n) {
    for (int i = 0; i < n; ++i) step();
  }
  void decide() {
    for (int i = 0; i < 2'000 && driver.stage() != "watch"; ++i) step();
    EXPECT_EQ(driver.stage(), "watch");
  }

 private:
  const StillClock clock_;

 public:
  Recorded<> audience;
  Driver driver;
  KeptStrategies runner;
  StepProtocol protocol;
};

// Files of this process may not grow beyond a size while it lives.
class SmallDisk {
 public:
  explicit SmallDisk(rlim_t bytes) : signal_before_(std::signal(SIGXFSZ, SIG_IGN)) {
    getrlimit(RLIMIT_FSIZE, &before_);
    const rlimit small{.rlim_cur = bytes, .rlim_max = before_.rlim_max};
    setrlimit(RLIMIT_FSIZE, &small);
  }
  ~SmallDisk() {
    setrlimit(RLIMIT_FSIZE, &before_);
    std::signal(SIGXFSZ, signal_before_);
  }
  SmallDisk(const SmallDisk&) = delete;
  SmallDisk& operator=(const SmallDisk&) = delete;

 private:
  void (*signal_before_)(int);
  rlimit before_{};
};

class Drivers : public testing::Test {
 protected:
  DriverOptions options(const std::string& journal = "") const {
    return {.job = tuned_job(),
            .network = "none",
            .transport = "gloo (why)",
            .journal = journal.empty() ? "" : folder_.path(journal),
            .quiet = true};
  }
  JournalFile journal(const std::string& name) const {
    auto file = read_journal(folder_.path(name));
    EXPECT_TRUE(file.ok()) << (file ? "" : file.error().message);
    return file ? std::move(file).value() : JournalFile();
  }
  static std::vector<Decision> decided(const JournalFile& file, What what) {
    std::vector<Decision> found;
    std::ranges::copy_if(file.decisions, std::back_inserter(found), [&](const Decision& d) { return d.what == what; });
    return found;
  }

  const test::TempFolder folder_;
};

TEST_F(Drivers, LeadTheRankToTheStrategyThatIsFaster) {
  LedRank rank(options());
  rank.start();
  EXPECT_FALSE(rank.driver.take_news());
  rank.decide();
  rank.steps(kLead);
  ASSERT_TRUE(rank.driver.outcome().committed);
  EXPECT_TRUE(is_lossy(rank.protocol.in_force().strategy)) << rank.protocol.in_force().label;
  EXPECT_TRUE(rank.protocol.is_committed());
  EXPECT_EQ(rank.protocol.in_force().strategy, rank.driver.chosen().strategy);
  EXPECT_EQ(rank.driver.standing().state, Standing::State::committed);
  EXPECT_GT(rank.driver.outcome().gain, 0.5);
  EXPECT_TRUE(rank.driver.take_news());
  EXPECT_FALSE(rank.driver.take_news()) << "the news were taken";
}

TEST_F(Drivers, SendAStrategyAsAFileThatFitsTheJob) {
  LedRank rank(options());
  rank.start();
  Action action;
  for (int i = 0; i < 100 && !action.candidate; ++i) action = rank.step();
  ASSERT_TRUE(action.candidate);
  EXPECT_EQ(action.command.kind, Command::Kind::prepare);
  const auto file = parse_strategy(rank.driver.text_of(action), compress::known_traits());
  ASSERT_TRUE(file.ok()) << file.error().message;
  EXPECT_EQ(file.value().strategy, action.candidate->strategy);
  EXPECT_EQ(file.value().label, action.candidate->label);
  EXPECT_TRUE(fit(file.value(), table(), 2, core::Fidelity::lossy, compress::known_traits()).ok());
  EXPECT_EQ(rank.driver.text_of({.command = {.kind = Command::Kind::run, .slot = 1}, .candidate = nullptr}), "");
}

TEST_F(Drivers, WriteAJournalThatExplainsTheRunAndDecidesTheSame) {
  LedRank rank(options("journal.jsonl"));
  ASSERT_TRUE(rank.driver.claim_journal().ok());
  rank.start();
  rank.driver.saw_ready({{0, 0.0}, {1, 10.0}, {2, 20.0}});
  rank.decide();
  rank.driver.finish();
  const JournalFile file = journal("journal.jsonl");
  EXPECT_EQ(file.network, "none");
  EXPECT_EQ(file.transport, "gloo (why)");
  EXPECT_EQ(file.job.table.tensors[2].ready_us, 20) << "as the tuner learned it";
  EXPECT_EQ(file.job.ranks.size, 2);
  EXPECT_EQ(static_cast<int64_t>(file.reports.size()), rank.protocol.step());
  EXPECT_EQ(file.stages.front(), Stage::observe);
  ASSERT_THAT(decided(file, What::commit), SizeIs(1));
  EXPECT_EQ(decided(file, What::commit)[0].label, rank.driver.chosen().label);
  EXPECT_TRUE(std::ranges::any_of(file.strategies, [&](const auto& each) {
    return each.second.strategy == rank.driver.chosen().strategy;
  })) << "its plan is written";
  const auto again = decide_again(file);
  ASSERT_TRUE(again.ok()) << again.error().message;
  EXPECT_EQ(again.value(), file.decided);
}

TEST_F(Drivers, TellWhyNoRankCouldPrepareAStrategy) {
  LedRank rank(options("journal.jsonl"));
  ASSERT_TRUE(rank.driver.claim_journal().ok());
  rank.runner.may_prepare = [](const core::Strategy& strategy) -> core::Status {
    if (!is_lossy(strategy)) return {};
    return core::Error{core::Error::Code::invalid, "no memory" + std::string(600, '!')};
  };
  rank.start();
  rank.decide();
  rank.driver.finish();
  EXPECT_FALSE(is_lossy(rank.protocol.in_force().strategy));
  const JournalFile file = journal("journal.jsonl");
  ASSERT_THAT(file.failures, Not(IsEmpty()));
  for (const PrepareFailure& failure : file.failures) {
    EXPECT_THAT(failure.why, HasSubstr("no memory"));
    EXPECT_EQ(failure.why.size(), 500U) << "people read it";
  }
  const auto failed = decided(file, What::prepare_failed);
  EXPECT_EQ(failed.size(), file.failures.size());
  for (const Decision& decision : failed) EXPECT_THAT(decision.label, HasSubstr(": no memory"));
}

TEST_F(Drivers, GoOnWhereAnotherOneWasSaved) {
  for (const int saved_after : {10, 60, 150, 600}) {
    LedRank rank(options()), other(options());
    rank.start();
    const TimedProgram timed(rank.protocol.in_force().strategy);
    rank.driver.saw_ready({{0, 0.0}, {1, 10.0}});
    for (int64_t step = 0; step < 3; ++step) rank.driver.ran(step, 0, *timed.program, timed.times);
    rank.steps(saved_after - 1);
    const Action last = rank.step();
    const SavedTuner saved = rank.driver.saved();
    const auto told = parse_replay_log(rank.driver.history());
    ASSERT_TRUE(told.ok()) << told.error().message;
    ASSERT_TRUE(other.driver.can_resume(saved, told.value()).ok());
    const auto action = other.driver.resume(saved, told.value());
    ASSERT_TRUE(action.ok()) << action.error().message;
    EXPECT_EQ(action.value().command.kind, last.command.kind);
    EXPECT_EQ(action.value().command.slot, last.command.slot);
    EXPECT_EQ(other.driver.stage(), rank.driver.stage());
    EXPECT_EQ(other.driver.standing(), rank.driver.standing());
    EXPECT_EQ(other.driver.chosen().strategy, rank.driver.chosen().strategy);
    EXPECT_EQ(other.driver.history(), rank.driver.history());
    EXPECT_EQ(to_json(other.driver.saved()), to_json(saved));
    EXPECT_EQ(saved.ready_count, (std::vector<int64_t>{1, 1, 0}));
    EXPECT_EQ(saved.committed.has_value(), rank.driver.outcome().committed);
  }
}

TEST_F(Drivers, DoNotGoOnForAnotherJobOrWithoutTheWholeHistory) {
  LedRank rank(options());
  rank.start();
  rank.steps(30);
  const SavedTuner saved = rank.driver.saved();
  Told told = parse_replay_log(rank.driver.history()).value();
  DriverOptions exact = options();
  exact.job.fidelity = core::Fidelity::exact;
  EXPECT_FALSE(LedRank(exact).driver.can_resume(saved, told).ok());

  told.answers ^= 1;
  LedRank other(options());
  const auto action = other.driver.resume(saved, told);
  ASSERT_FALSE(action.ok()) << "a tuner that decides differently";
  EXPECT_EQ(action.error().code, core::Error::Code::mismatch);

  told.is_whole = false;
  const core::Status status = rank.driver.can_resume(saved, told);
  ASSERT_FALSE(status.ok());
  EXPECT_THAT(status.error().message, HasSubstr("more steps than a checkpoint's history holds"));
}

TEST_F(Drivers, LearnReadyTimesUntilTheJobIsObserved) {
  LedRank rank(options());
  rank.driver.saw_ready({{0, 1.0}});  // before it starts
  EXPECT_FALSE(rank.driver.learns_ready());
  rank.start();
  EXPECT_TRUE(rank.driver.learns_ready());
  rank.driver.saw_ready({{0, 0.0}, {1, 100.0}, {2, 500.0}});
  rank.driver.saw_ready({{1, 200.0}});
  const auto ready_us = [&] {
    std::vector<double> times;
    for (const core::TensorInfo& tensor : rank.driver.job().table.tensors) times.push_back(tensor.ready_us);
    return times;
  };
  EXPECT_THAT(ready_us(), ElementsAre(0, 150, 500)) << "means of the passes in which each was ready";
  rank.decide();
  EXPECT_FALSE(rank.driver.learns_ready());
  rank.driver.saw_ready({{1, 9'000.0}});
  EXPECT_THAT(ready_us(), ElementsAre(0, 150, 500));
}

TEST_F(Drivers, LearnTheForwardPassAndHowMuchCompressorsUse) {
  LedRank rank(options());
  EXPECT_FALSE(rank.driver.lacks_uses());
  rank.start();
  EXPECT_TRUE(rank.driver.lacks_uses());
  rank.driver.learn_uses({{}});
  EXPECT_FALSE(rank.driver.lacks_uses());
  rank.driver.learn_forward({.read_us = {30, 20, -1}, .forward_us = 40, .update_element_us = 0.5});
  const core::GradientTable& learned = rank.driver.job().table;
  EXPECT_EQ(learned.forward_us, 40);
  EXPECT_EQ(learned.update_element_us, 0.5);
  EXPECT_EQ(learned.tensors[1].read_us, 20);
  EXPECT_EQ(learned.tensors[2].read_us, -1);
}

TEST_F(Drivers, SearchAgainOnceTheContentOfAGradientChanged) {
  LedRank rank(options("journal.jsonl"));
  ASSERT_TRUE(rank.driver.claim_journal().ok());
  rank.start();
  rank.driver.saw_sample(1, {.of_one = 0.9, .of_all = 0.95});
  EXPECT_EQ(rank.driver.job().table.tensors[1].content, core::Content()) << "nearly dense";
  rank.driver.saw_sample(2, {.of_one = 0.1, .of_all = 0.2});
  rank.driver.saw_sample(2, {.of_one = 0.3, .of_all = 0.4});
  EXPECT_DOUBLE_EQ(rank.driver.job().table.tensors[2].content.of_one, 0.2);
  EXPECT_DOUBLE_EQ(rank.driver.job().table.tensors[2].content.of_all, 0.3);
  rank.decide();
  const auto watch = [&](const RowShares& shares) {
    for (int i = 0; i < 200 && rank.driver.stage() == "watch"; ++i) {
      rank.driver.saw_sample(2, shares);
      rank.step();
    }
  };
  watch({.of_one = 0.2, .of_all = 0.3});
  EXPECT_EQ(rank.driver.stage(), "watch");
  watch({.of_one = 0.05, .of_all = 0.1});
  EXPECT_EQ(rank.driver.stage(), "observe");
  EXPECT_DOUBLE_EQ(rank.driver.job().table.tensors[2].content.of_all, 0.1);
  rank.driver.finish();
  const auto found = decided(journal("journal.jsonl"), What::density);
  ASSERT_THAT(found, SizeIs(1));
  EXPECT_EQ(found[0].label, table().tensors[2].name);
}

TEST_F(Drivers, TakeTheTimesOfThreeStepsOfEachStrategyAfterItsFirst) {
  LedRank rank(options("journal.jsonl"));
  ASSERT_TRUE(rank.driver.claim_journal().ok());
  rank.start();
  const TimedProgram timed(rank.protocol.in_force().strategy);
  rank.driver.ran(0, 0, *timed.program, timed.unknown);
  for (int64_t step = 1; step <= 6; ++step) {
    rank.driver.ran(step, 0, *timed.program, timed.times);
    rank.step();
  }
  rank.driver.finish();
  const JournalFile file = journal("journal.jsonl");
  ASSERT_THAT(file.timings, SizeIs(3));
  for (const Timing& timing : file.timings) {
    EXPECT_EQ(timing.slot, 0);
    ASSERT_THAT(timing.ops, Not(IsEmpty()));
    EXPECT_EQ(timing.ops[0].begin_us, 0);
    EXPECT_EQ(timing.ops[0].end_us, 3);
  }
}

TEST_F(Drivers, KeepAPinnedStrategyAndSayNothingOfItsSteps) {
  DriverOptions pinned = options();
  pinned.quiet = false;
  pinned.job.tuning.budget_steps = 0;
  LedRank rank(pinned);
  rank.start();
  const core::Strategy first = rank.protocol.in_force().strategy;
  for (int i = 0; i < 50; ++i) EXPECT_EQ(rank.step().command, Command());
  EXPECT_EQ(rank.protocol.in_force().strategy, first);
  EXPECT_EQ(rank.driver.standing().state, Standing::State::pinned);
  EXPECT_EQ(std::ranges::count(rank.audience.text, '\n'), 1) << rank.audience.text;
}

TEST_F(Drivers, TellPeopleHowTheJobStandsUnlessQuiet) {
  DriverOptions loud = options();
  loud.quiet = false;
  LedRank rank(loud), quiet(options());
  for (LedRank* each : {&rank, &quiet}) {
    each->start();
    each->decide();
    each->driver.finish();
    EXPECT_THAT(each->audience.warnings, IsEmpty());
  }
  EXPECT_THAT(rank.audience.text, AllOf(HasSubstr("fidelity lossy"), HasSubstr(rank.driver.chosen().label)));
  EXPECT_EQ(quiet.audience.text, "");
}

TEST_F(Drivers, UseAnotherFileIfTheJournalIsTaken) {
  LedRank first(options("journal.jsonl")), second(options("journal.jsonl"));
  ASSERT_TRUE(first.driver.claim_journal().ok());
  ASSERT_TRUE(second.driver.claim_journal().ok());
  EXPECT_THAT(first.audience.warnings, IsEmpty());
  EXPECT_THAT(second.audience.warnings, ElementsAre(HasSubstr("journal.2.jsonl")));
  for (LedRank* each : {&first, &second}) {
    each->start();
    each->steps(10);
    each->driver.finish();
  }
  EXPECT_THAT(journal("journal.jsonl").reports, SizeIs(10));
  EXPECT_THAT(journal("journal.2.jsonl").reports, SizeIs(10));
}

TEST_F(Drivers, RefuseAJournalThatCanNotBeWritten) {
  LedRank rank(options("no folder/journal.jsonl"));
  const core::Status status = rank.driver.claim_journal();
  ASSERT_FALSE(status.ok());
  EXPECT_THAT(status.error().message, HasSubstr("no folder/journal.jsonl"));
}

TEST_F(Drivers, TuneOnWithOneWarningWhenTheDiskIsFull) {
  LedRank rank(options("journal.jsonl"));
  ASSERT_TRUE(rank.driver.claim_journal().ok());
  {
    const SmallDisk disk(8'000);
    rank.start();
    rank.steps(5);
    EXPECT_THAT(rank.audience.warnings, IsEmpty());
    rank.decide();
    rank.driver.finish();
  }
  EXPECT_TRUE(rank.driver.outcome().committed);
  EXPECT_THAT(rank.audience.warnings, ElementsAre(HasSubstr("the journal ends here")));
}

TEST_F(Drivers, BeginAnewWithAnotherStart) {
  LedRank rank(options("journal.jsonl"));
  ASSERT_TRUE(rank.driver.claim_journal().ok());
  rank.start();
  rank.driver.saw_ready({{1, 100.0}});
  rank.decide();
  rank.start();
  EXPECT_EQ(rank.driver.stage(), "observe");
  EXPECT_EQ(rank.driver.job().table, table());
  EXPECT_EQ(rank.driver.saved().ready_count, (std::vector<int64_t>{0, 0, 0}));
  EXPECT_FALSE(rank.driver.outcome().committed);
  EXPECT_FALSE(rank.driver.take_news()) << "they were about the tuner before";
  rank.steps(5);
  rank.driver.finish();
  EXPECT_THAT(journal("journal.jsonl").reports, SizeIs(5)) << "the file has the present run";
}

TEST_F(Drivers, StartFromAnImportedStrategy) {
  LedRank rank(options("journal.jsonl"));
  ASSERT_TRUE(rank.driver.claim_journal().ok());
  const core::Strategy fast =
      exec::make_strategy(table(), "topk:0.01: encode@device all_gather decode@device", 1 << 20, 1);
  rank.start(policies::Candidate{fast, "imported"});
  EXPECT_EQ(rank.driver.stage(), "imported");
  EXPECT_EQ(rank.driver.chosen().label, "imported");
  rank.decide();
  rank.driver.finish();
  EXPECT_TRUE(rank.driver.outcome().committed);
  EXPECT_EQ(rank.driver.chosen().strategy, fast);
  EXPECT_EQ(journal("journal.jsonl").strategies.at(kImportedSlot).strategy, fast);
}

}  // namespace
}  // namespace gradtune::tuner
