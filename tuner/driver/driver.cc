// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
#include "tuner/driver/driver.h"

#include <algorithm>
#include <utility>

#include "tuner/files/printable.h"
#include "tuner/files/strategy_file.h"
#include "tuner/timed_ops.h"

namespace gradtune::tuner {
namespace {

// True for stages before candidates are planned.
bool is_observing(Stage stage) { return stage == Stage::observe || stage == Stage::imported; }

// The content of a gradient that came as rows, or of a dense one that was sampled.
core::Content content_of(const core::TensorInfo& tensor, const RowShares& shares, bool came_as_rows) {
  constexpr double kLeast = 1e-6;       // a sample may have found no row
  constexpr double kSparseBelow = 0.5;  // for dense gradients: above this share there is little to gain
  if (came_as_rows ? shares.of_one >= 1 : shares.of_all >= kSparseBelow) return {};
  const double of_one = std::max(shares.of_one, kLeast), of_all = std::max(shares.of_all, of_one);
  return {.row = tensor.row_width(), .of_one = of_one, .of_all = of_all, .high_one = of_one, .high_all = of_all};
}

}  // namespace

Driver::Driver(DriverOptions options, const core::Clock& clock, Audience& audience)
    : options_(std::move(options)), audience_(audience) {
  if (options_.quiet) return;
  progress_.emplace([this](std::string_view text) { audience_.say(text); }, audience.is_terminal(), clock);
  progress_->start(options_.job.fidelity, options_.job.codecs, options_.job.policy, options_.transport);
}

Job Driver::job_of(const core::GradientTable& table, std::optional<policies::Candidate> imported,
                   const policies::Machine& machine) const {
  Job job = options_.job;
  job.table = table;
  job.imported = std::move(imported);
  job.machine = machine;
  job.machine.cores.host = job.host_threads;
  return job;
}

core::Status Driver::claim_journal() {
  if (options_.journal.empty()) return {};
  auto place = JournalPlace::claim(options_.journal);
  if (!place) return place.error();
  if (place.value().path() != options_.journal) {
    audience_.warn("another journal is being written to " + options_.journal + "; this one goes to " +
                   place.value().path());
  }
  journal_place_ = std::move(place).value();
  return {};
}

void Driver::start(const core::GradientTable& table, std::optional<policies::Candidate> imported) {
  begin(job_of(table, std::move(imported), options_.job.machine));
}

void Driver::begin(Job job) {
  job_ = std::move(job);
  ready_count_.assign(job_.table.tensors.size(), 0);
  history_ = ReplayLog();
  sampled_.clear();
  content_watches_.clear();
  timed_.clear();
  timed_in_observation_ = true;
  decided_ = false;
  tuner_ = make_tuner(job_).value();
  story_ = Story(job_);
  has_news_ = false;
  if (!journal_place_) return;
  auto journal = Journal::open(journal_place_->path(), journal_header(job_, options_.network, options_.transport));
  if (!journal) return end_journal(journal.error());
  journal_ = std::move(journal.value());
  write(journal_line(job_.table));
  if (job_.imported) write_plan(-1, kImportedSlot, *job_.imported);
}

SavedTuner Driver::saved() const {
  SavedTuner saved{
      .job = job_, .ready_count = ready_count_, .timed = timed_, .timed_in_observation = timed_in_observation_};
  if (!tuner_->outcome().committed) return saved;
  const policies::Candidate& chosen = tuner_->chosen();
  saved.committed = strategy_file(job_.table, job_.ranks.size, job_.fidelity, chosen.label, chosen.strategy);
  return saved;
}

core::Status Driver::can_resume(const SavedTuner& saved, const Told& told) const {
  policies::Machine machine = saved.job.machine;
  machine.on_device = options_.job.machine.on_device;
  const Job mine = job_of(saved.job.table, {}, machine);
  if (core::Status same = same_job(saved.job, mine); !same) return same;
  if (told.is_whole) return {};
  return core::Error{core::Error::Code::mismatch, "it ran for more steps than a checkpoint's history holds"};
}

core::Result<Action> Driver::resume(const SavedTuner& saved, const Told& told) {
  begin(job_of(saved.job.table, saved.job.imported, saved.job.machine));
  resuming_ = true;
  auto action = replay(
      told,
      [&](const core::StepReport& report) {
        Action answer = decide(report);
        if (answer.candidate) write_plan(report.step + 1, answer.command.slot, *answer.candidate);
        return answer;
      },
      [&](const Timing& timing) {
        const int64_t step = told.reports[timing.report].step + 1;  // reports describe the step before
        if (journal_) write(journal_timing_line(step, timing.slot, timing.ops));
        learn_timing(timing.slot, timing.ops);
      });
  resuming_ = false;
  ready_count_ = saved.ready_count;
  timed_ = saved.timed;
  timed_in_observation_ = saved.timed_in_observation;
  return action;
}

bool Driver::learns() const { return tuner_ && !decided_ && is_observing(tuner_->stage()); }

void Driver::saw_ready(const std::vector<ReadyTime>& times) {
  if (!learns()) return;
  for (const auto& [position, us] : times) {
    const auto p = static_cast<size_t>(position);
    double& mean_us = job_.table.tensors[p].ready_us;
    mean_us += (us - mean_us) / static_cast<double>(++ready_count_[p]);
  }
}

void Driver::saw_content(int32_t position, const RowShares& shares) {
  const auto p = static_cast<size_t>(position);
  if (!tuner_) return;
  if (decided_) return watch_content(position, shares, /*came_as_rows=*/true);
  if (!is_observing(tuner_->stage())) return;
  const auto [of_one, of_all] = shares;
  core::Content& content = job_.table.tensors[p].content;
  if (content == core::Content()) return;                                         // not known to be sparse, on any rank
  const auto count = static_cast<double>(std::max<int64_t>(ready_count_[p], 1));  // it was ready before
  const auto add = [&](double& mean, double& high, double seen) {
    mean += (seen - mean) / count;
    high = std::max(high, seen);
  };
  if (of_one > 0) add(content.of_one, content.high_one, of_one);
  if (of_all > 0) add(content.of_all, content.high_all, of_all);
}

void Driver::saw_sample(int32_t position, const RowShares& shares) {
  if (!tuner_) return;
  if (decided_) return watch_content(position, shares, /*came_as_rows=*/false);
  if (!is_observing(tuner_->stage())) return;
  auto& [mean, steps] = sampled_[position];
  ++steps;
  mean.of_one += (shares.of_one - mean.of_one) / static_cast<double>(steps);
  mean.of_all += (shares.of_all - mean.of_all) / static_cast<double>(steps);
  core::TensorInfo& tensor = job_.table.tensors[static_cast<size_t>(position)];
  tensor.content = content_of(tensor, mean, /*came_as_rows=*/false);
}

// The decision relied on the content that was known then, so a large change is reported to the tuner.
void Driver::watch_content(int32_t position, const RowShares& shares, bool came_as_rows) {
  if (tuner_->stage() != Stage::watch) return;
  const auto moved = content_watches_[position].record(shares);
  if (!moved) return;
  core::TensorInfo& tensor = job_.table.tensors[static_cast<size_t>(position)];
  tensor.content = content_of(tensor, *moved, came_as_rows);
  tuner_->learn_table(job_.table);
}

void Driver::learn_forward(const ForwardTimes& times) {
  if (!learns()) return;
  for (size_t p = 0; p < job_.table.tensors.size(); ++p) job_.table.tensors[p].read_us = times.read_us[p];
  job_.table.forward_us = times.forward_us;
  job_.table.update_element_us = times.update_element_us;
}

bool Driver::lacks_uses() const { return learns() && job_.table.uses.empty(); }

void Driver::learn_uses(std::vector<core::CodecUse> uses) { job_.table.uses = std::move(uses); }

Action Driver::on_step(const StepProtocol::Received& received, const StepProtocol& protocol) {
  if (received.failure) could_not_prepare(protocol.step(), *received.failure);
  Action action = decide(received.report);
  write_errors(protocol.step(), protocol.slot(), protocol.errors());
  if (action.candidate) write_plan(protocol.step(), action.command.slot, *action.candidate);
  return action;
}

std::string Driver::text_of(const Action& action) const {
  if (!action.candidate) return {};
  const policies::Candidate& candidate = *action.candidate;
  return to_json(strategy_file(job_.table, job_.ranks.size, job_.fidelity, candidate.label, candidate.strategy));
}

Action Driver::decide(const core::StepReport& report) {
  const Stage stage = tuner_->stage();
  if (is_observing(stage) && !decided_) tuner_->learn_table(job_.table);
  Action action = tuner_->on_step(report);
  history_.add(report, action);
  const bool observed = !decided_ && is_observing(stage) && !is_observing(tuner_->stage());
  decided_ = decided_ || tuner_->stage() == Stage::watch;
  if (journal_ && observed) write(journal_line(job_.table));
  if (journal_) write(journal_line(report, stage));
  const std::vector<Decision> decisions = tuner_->take_decisions();
  note(decisions);
  if (progress_ && !resuming_) progress_->decided(decisions, story_.standing());
  if (progress_ && !resuming_ && !is_pinned()) {
    progress_->step(tuner_->stage(), tuner_->progress(), std::max<int64_t>(report.step, 0), report.step_ms,
                    tuner_->in_force().label);
  }
  return action;
}

void Driver::ran(int64_t step, int32_t slot, const exec::Program& program, const std::vector<exec::OpTime>& times) {
  constexpr int kSteps = 4;  // the first may include the cost of a switch
  if (!tuner_ || times.empty()) return;
  const bool are_known = std::ranges::all_of(times, [](const exec::OpTime& time) { return time.begin_ns != 0; });
  if (!are_known) return;  // a device without event times
  // After an alarm the baselines are observed again.
  if (is_observing(tuner_->stage()) && !timed_in_observation_) timed_.clear();
  timed_in_observation_ = is_observing(tuner_->stage());
  int& steps = timed_[slot];
  if (steps >= kSteps) return;
  ++steps;
  if (steps == 1) return;
  const std::vector<policies::TimedOp> ops = timed_ops(program, times);
  if (journal_) write(journal_timing_line(step, slot, ops));
  learn_timing(slot, ops);
}

void Driver::learn_timing(int32_t slot, const std::vector<policies::TimedOp>& ops) {
  if (is_pinned()) return;
  history_.add(slot, ops);
  tuner_->learn_timing(slot, ops);
}

void Driver::write_errors(int64_t step, int32_t slot, const ErrorBudget::State& errors) {
  constexpr int64_t kEvery = 32;  // the window of the medians, in steps
  const bool is_lossy = std::ranges::any_of(errors.buckets, [](const auto& bucket) { return bucket.errors.count > 0; });
  if (journal_ && is_lossy && step % kEvery == 0) write(journal_line(step, slot, errors));
}

void Driver::write_plan(int64_t step, int32_t slot, const policies::Candidate& candidate) {
  if (journal_) write(journal_plan_line(step, slot, job_, candidate));
}

void Driver::could_not_prepare(int64_t step, const std::string& why) {
  constexpr size_t kMostBytes = 500;  // it goes into lines for people and into labels of decisions
  const std::string shown = printable(why).substr(0, kMostBytes);
  if (journal_) write(journal_failure_line(step, shown));
  tuner_->learn_failure(shown);
}

void Driver::chose(const RoundChoice& choice) {
  if (!journal_) return;
  write(journal_line(choice));
  if (journal_) flush_journal();
}

void Driver::note(const std::vector<Decision>& decisions) {
  if (decisions.empty()) return;
  const Standing before = story_.standing();
  for (const Decision& decision : decisions) {
    story_.learn(decision);
    if (journal_) write(journal_line(decision));
  }
  if (story_.standing() == before) return;
  has_news_ = true;
  // A job that is killed later leaves its decisions.
  if (journal_) flush_journal();
}

// A full disk must not end a training job: the journal ends, with one warning.
void Driver::write(const std::string& journal_line) {
  if (const core::Status status = journal_->write(journal_line); !status) end_journal(status.error());
}

void Driver::end_journal(const core::Error& why) {
  audience_.warn("the journal ends here: " + why.message);
  journal_.reset();
}

void Driver::flush_journal() {
  if (const core::Status status = journal_->flush(); !status) end_journal(status.error());
}

void Driver::finish() {
  if (!tuner_) return;
  if (progress_) progress_->finish(story_.standing(), tuner_->stage());
  if (journal_) flush_journal();
}

std::string_view Driver::stage() const { return tuner_ ? to_string(tuner_->stage()) : "observe"; }

}  // namespace gradtune::tuner
