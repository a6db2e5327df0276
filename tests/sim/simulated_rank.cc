// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
#include "tests/sim/simulated_rank.h"

#include <string_view>
#include <utility>

#include "engine/compress/compressor.h"
#include "engine/core/hash.h"
#include "tuner/files/strategy_file.h"

namespace gradtune::sim {
namespace {

using tuner::Command;

uint64_t digest_of(const exec::Values& a, const exec::Values& b) {
  core::Hasher hasher;
  for (const exec::Values* values : {&a, &b}) {
    hasher.add(std::string_view(reinterpret_cast<const char*>(values->data()), values->size() * sizeof(float)));
  }
  return hasher.value();
}

}  // namespace

SimulatedRank::SimulatedRank(World& world, std::unique_ptr<comm::Communicator> data,
                             std::unique_ptr<comm::Communicator> control, const RankOptions& options, Leader leader)
    : world_(world),
      options_(options),
      rank_(data->rank()),
      size_(data->size()),
      leader_(std::move(leader)),
      rng_(core::Rng(world.options().seed).fork("rank " + std::to_string(rank_))),
      gradients_(options.table),
      data_(record(std::move(data), Call::Group::data, world, calls_)),
      control_(record(std::move(control), Call::Group::control, world, calls_)),
      executor_(world, *data_, *control_, gradients_, options.executor,
                [this](bool finite) { return control_word(finite); }),
      agreement_(0, core::hash(options.start.at(0).strategy)),
      error_budget_(options.error_budget) {
  for (size_t slot = 0; slot < options.start.size(); ++slot) {
    const core::Strategy& strategy = options.start[slot].strategy;
    executor_.prepare(static_cast<int32_t>(slot), strategy).value();
    if (slot > 0) agreement_.prepared(static_cast<int32_t>(slot), core::hash(strategy));
  }
  put_in_force(0, /*is_committed=*/false);
  world_.after(0, rank_, [this] { begin_step(); });
}

// --- backward --------------------------------------------------------------------------------------------------------

void SimulatedRank::begin_step() {
  began_ns_ = world_.now_ns();
  record_ = {.step = step(), .epoch = agreement_.epoch(), .strategy = executor_.strategy()};
  const double pace = 1 + options_.noise * (2 * rng_.uniform() - 1);
  const auto forward_ns = static_cast<int64_t>(pace * static_cast<double>(options_.forward_ns));
  world_.after(world_.work_ns(rank_, forward_ns), rank_, [this, pace] { begin_backward(pace); });
}

void SimulatedRank::begin_backward(double pace) {
  given_ = options_.gradient(rank_, step());
  if (options_.on_values) {
    before_ = executor_.residual();
    parked_before_ = executor_.residual(exec::Which::parked);
  }
  gradients_.write(given_);
  executor_.backward(pace, [this](const core::Status& status) { finish_backward(status); });
}

std::span<double> SimulatedRank::control_word(bool finite) {
  local_.finite = finite;
  word_ = agreement_.contribute(local_, announced_);
  return word_;
}

void SimulatedRank::finish_backward(const core::Status& status) {
  if (!status) return fail(status.error());
  const auto verdict = agreement_.receive(local_, word_);
  if (!verdict) return name_those_who_differ(verdict.error());
  settle(verdict.value());
}

void SimulatedRank::settle(const tuner::Verdict& verdict) {
  const core::Result<bool> settled = executor_.conclude(verdict.finite);
  if (!settled) return fail(settled.error());
  executor_.drain();
  report_ = verdict.report;
  std::vector<core::BucketLoss> losses;
  for (size_t b = 0; b < record_.strategy.buckets.size(); ++b)
    losses.push_back(executor_.loss(static_cast<int32_t>(b)));
  excess_ = settled.value() ? error_budget_.record(losses) : core::Excess();
  record_.finite = settled.value();
  record_.command = verdict.command;
  exec::Values average = gradients_.read(), after = executor_.residual();
  record_.digest = digest_of(average, after);
  world_.note(rank_, "settled", record_.digest);
  if (options_.on_values) {
    options_.on_values({rank_, record_, std::move(given_), std::move(average), std::move(before_), std::move(after),
                        std::move(parked_before_), executor_.residual(exec::Which::parked)});
  }
  carry_out(verdict.command);
}

// --- commands --------------------------------------------------------------------------------------------------------

void SimulatedRank::carry_out(const Command& command) {
  switch (command.kind) {
    case Command::Kind::keep: break;
    case Command::Kind::prepare:
      excluded_ = true;  // the time of this step holds the preparation
      received_text_ = rank_ == 0 ? announced_text_ : std::string(static_cast<size_t>(command.bytes), ' ');
      return start({.kind = comm::Collective::Kind::broadcast,
                    .out = reinterpret_cast<std::byte*>(received_text_.data()),
                    .count = command.bytes},
                   [this, command](const core::Status& status) {
                     if (status) return receive_strategy(command);
                     fail({status.error().code, "the broadcast of a strategy failed: " + status.error().message});
                   });
    case Command::Kind::run: put_in_force(command.slot, /*is_committed=*/false); break;
    case Command::Kind::commit: put_in_force(command.slot, /*is_committed=*/true); break;
    case Command::Kind::drop: executor_.drop(command.slot); break;
  }
  lead();
}

void SimulatedRank::put_in_force(int32_t slot, bool is_committed) {
  is_committed ? executor_.commit(slot) : executor_.run(slot);
  const core::Strategy& strategy = executor_.strategy();
  is_committed ? error_budget_.commit(strategy) : error_budget_.run(strategy.buckets.size());
}

void SimulatedRank::receive_strategy(const Command& command) {
  if (options_.received) received_text_ = options_.received(rank_, received_text_);
  world_.after(world_.work_ns(rank_, options_.prepare_ns), rank_, [this, slot = command.slot] {
    std::optional<uint64_t> hash;
    auto file = tuner::parse_strategy(received_text_, compress::known_traits());
    if (file && executor_.prepare(slot, file.value().strategy)) hash = core::hash(file.value().strategy);
    agreement_.prepared(slot, hash);
    lead();
  });
}

void SimulatedRank::lead() {
  if (leader_) {
    const tuner::Action action = leader_(report_);
    announced_ = action.command;
    if (announced_.kind == Command::Kind::prepare) {
      announced_text_ = file_text(*action.candidate);
      announced_.bytes = static_cast<int64_t>(announced_text_.size());
    }
    world_.note(rank_, "announced",
                static_cast<uint64_t>(announced_.kind) << 32 | static_cast<uint32_t>(announced_.slot));
  }
  world_.after(world_.work_ns(rank_, options_.update_ns), rank_, [this] { end_step(); });
}

void SimulatedRank::end_step() {
  const exec::StepTimes& times = executor_.times();
  record_.step_ms = static_cast<double>(world_.now_ns() - began_ns_) * 1e-6;
  local_ = {.step = record_.step,
            .step_ms = record_.step_ms,
            .compute_ms = record_.step_ms - times.encode_ms - times.decode_ms - times.wait_ms,
            .excess = excess_,
            .finite = true,
            .excluded = excluded_};
  excluded_ = false;
  steps_.push_back(std::move(record_));
  ended_ns_ = world_.now_ns();
  if (!ended()) begin_step();
}

std::string SimulatedRank::file_text(const policies::Candidate& candidate) const {
  return tuner::to_json(
      tuner::strategy_file(options_.table, size_, options_.fidelity, candidate.label, candidate.strategy));
}

std::string SimulatedRank::exported() const { return file_text({executor_.strategy(), "in force"}); }

// --- failures --------------------------------------------------------------------------------------------------------

// The first rank that knows ends, and may so end the comparison for others; that they differ is known all the same.
void SimulatedRank::name_those_who_differ(const core::Error& error) {
  identity_ = agreement_.identity();
  identities_.resize(static_cast<size_t>(size_));
  start({.kind = comm::Collective::Kind::all_gather,
         .in = reinterpret_cast<const std::byte*>(&identity_),
         .out = reinterpret_cast<std::byte*>(identities_.data()),
         .count = sizeof identity_},
        [this, error](const core::Status& status) {
          const std::string who = status ? "rank " + tuner::differing_ranks(identities_)
                                         : "not known, as the comparison of ranks failed: " + status.error().message;
          fail({error.code, error.message + " (differs from rank 0: " + who + ")"});
        });
}

void SimulatedRank::start(comm::Collective collective, SimulatedExecutor::Done then) {
  collective.timeout_ms = options_.executor.timeout_ms;
  then_ = std::move(then);
  control_->start(collective, *this, 0);
}

void SimulatedRank::complete(uint64_t, core::Status status, core::Fence) {
  world_.after(0, rank_, [this, status = std::move(status)] { std::exchange(then_, nullptr)(status); });
}

void SimulatedRank::fail(const core::Error& error) {
  error_ = error;
  ended_ns_ = world_.now_ns();
  for (auto* each : {data_.get(), control_.get()}) each->abort();
}

}  // namespace gradtune::sim
