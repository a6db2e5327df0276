// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
#include "tuner/step_protocol.h"

#include <string>
#include <utility>

namespace gradtune::tuner {

StepProtocol::StepProtocol(exec::StrategyRunner& runner, int rank, const ErrorBudget::Limits& limits,
                           ReadCandidate read)
    : runner_(runner), rank_(rank), limits_(limits), read_(read), error_budget_(limits) {}

void StepProtocol::start(const Candidates& ready, int32_t first, bool is_committed) {
  agreement_.emplace(first, core::hash(ready.at(first).strategy));
  for (const auto& [slot, candidate] : ready) {
    runner_.prepare(slot, candidate.strategy).value();
    if (slot != first) agreement_->prepared(slot, core::hash(candidate.strategy));
  }
  candidates_ = ready;
  error_budget_ = ErrorBudget(limits_);
  put_in_force(first, is_committed);
  announced_ = {};
  local_ = {};
}

void StepProtocol::put_in_force(int32_t slot, bool is_committed) {
  is_committed ? runner_.commit(slot) : runner_.run(slot);
  committed_ = is_committed;
  losses_.assign(runner_.strategy().buckets.size(), {});
  is_committed ? error_budget_.commit(runner_.strategy()) : error_budget_.run(runner_.strategy());
}

// --- a step ----------------------------------------------------------------------------------------------------------

void StepProtocol::begin(uint64_t alike) {
  local_.not_dense = local_.new_buffers = false;
  local_.alike = alike;
}

std::span<double> StepProtocol::control_word(bool finite) {
  LocalStep local = local_;
  local.finite = finite;
  local.round = round_;
  word_ = agreement_->contribute(local, announced_);
  return word_;
}

core::Result<StepProtocol::Received> StepProtocol::receive() {
  const core::Result<Verdict> verdict = agreement_->receive(local_, word_);
  if (!verdict) return verdict.error();
  const core::StepReport report = core::with_one_update(verdict.value().report, verdict.value().updates);
  local_.excluded = true;  // its times are sent: a second backward pass in this step has no others
  local_.excess = {};
  round_ = {};
  const core::Result<bool> counts = runner_.conclude(verdict.value().finite);
  if (!counts) return counts.error();
  excess_ = {};
  if (counts.value()) {
    for (size_t b = 0; b < losses_.size(); ++b) losses_[b] = runner_.loss(static_cast<int32_t>(b));
    excess_ = error_budget_.record(losses_);
  } else {
    ++nonfinite_steps_;
    excluded_ = true;  // the user may skip this step, and its time would be added to the next one's
  }
  std::optional<std::string> failure;
  if (const auto rank = verdict.value().failed_rank) {
    failure = prepared_ ? "rank " + std::to_string(*rank) + " could not, and warned why" : prepared_.error().message;
  }
  return Received{.report = report,
                  .command = verdict.value().command,
                  .not_dense = verdict.value().not_dense,
                  .new_buffers = verdict.value().new_buffers,
                  .round = verdict.value().round,
                  .counts = counts.value(),
                  .failure = std::move(failure)};
}

int64_t StepProtocol::carry_out(const Command& command) {
  switch (command.kind) {
    case Command::Kind::keep: break;
    case Command::Kind::prepare:
      excluded_ = true;  // the time of this step includes the preparation
      receiving_ = command.slot;
      break;
    case Command::Kind::run: put_in_force(command.slot, /*is_committed=*/false); break;
    case Command::Kind::commit: put_in_force(command.slot, /*is_committed=*/true); break;
    case Command::Kind::drop:
      runner_.drop(command.slot);
      candidates_.erase(command.slot);
      break;
  }
  return command.bytes;
}

core::Status StepProtocol::receive_strategy(const std::string& text) {
  std::optional<uint64_t> hash;
  const core::Result<policies::Candidate> candidate = read_(text);
  prepared_ = candidate ? runner_.prepare(receiving_, candidate.value().strategy) : candidate.error();
  if (prepared_) {
    hash = core::hash(candidate.value().strategy);
    candidates_[receiving_] = candidate.value();
  }
  agreement_->prepared(receiving_, hash);
  return prepared_;
}

void StepProtocol::announce(const Command& command, std::string text) {
  announced_ = command;
  announced_text_ = std::move(text);
  announced_.bytes = static_cast<int64_t>(announced_text_.size());
}

void StepProtocol::end_step(const Times& times) {
  const double comm_ms_before = std::exchange(comm_ms_, times.comm_ms);
  local_ = {.step = step_,
            .step_ms = times.step_ms,
            .compute_ms = times.compute_ms,
            .comm_ms = comm_ms_before > 0 && comm_ms_ > 0 ? (comm_ms_before + comm_ms_) / 2 : comm_ms_,
            .work_ms = times.work_ms,
            .updates = times.updates,
            .rank = rank_,
            .excess = std::exchange(excess_, {}),
            .finite = true,
            .excluded = std::exchange(excluded_, false)};
  ++step_;
}

// --- checkpoints -----------------------------------------------------------------------------------------------------

StepProtocol::State StepProtocol::state() const {
  return {.step = step_,
          .nonfinite_steps = nonfinite_steps_,
          .committed = committed_,
          .local = local_,
          .agreement = agreement_->state(),
          .errors = error_budget_.state()};
}

core::Status StepProtocol::restore_candidates(const Candidates& candidates) {
  candidates_ = candidates;
  for (const auto& [slot, candidate] : candidates) {
    if (core::Status prepared = runner_.prepare(slot, candidate.strategy); !prepared) return prepared;
  }
  return {};
}

void StepProtocol::restore(const State& state) {
  agreement_.emplace(state.agreement);
  put_in_force(state.agreement.slot, state.committed);
  error_budget_.restore(state.errors);
  step_ = state.step;
  nonfinite_steps_ = state.nonfinite_steps;
  local_ = state.local;
}

void StepProtocol::go_on_from(int64_t step, int64_t nonfinite_steps) {
  step_ = step;
  nonfinite_steps_ = nonfinite_steps;
  local_ = {.step = step_ - 1, .rank = rank_, .excluded = true};
}

}  // namespace gradtune::tuner
