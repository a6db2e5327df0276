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
      data_(sim::record(std::move(data), Call::Group::data, world, calls_)),
      control_(sim::record(std::move(control), Call::Group::control, world, calls_)),
      executor_(world, *data_, *control_, gradients_, options.executor,
                [this](bool finite) { return protocol_.control_word(finite); }),
      protocol_(executor_, rank_, options.error_budget, &tuner::read_candidate) {
  tuner::Candidates ready;
  for (size_t slot = 0; slot < options.start.size(); ++slot) ready[static_cast<int32_t>(slot)] = options.start[slot];
  protocol_.start(ready, /*first=*/0, /*is_committed=*/false);
  world_.after(0, rank_, [this] { begin_step(); });
}

// --- backward --------------------------------------------------------------------------------------------------------

void SimulatedRank::begin_step() {
  began_ns_ = world_.now_ns();
  record_ = {.step = step(), .epoch = protocol_.epoch(), .strategy = executor_.strategy()};
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
  protocol_.begin(/*buffers=*/0);
  executor_.backward(pace, [this](const core::Status& status) { finish_backward(status); });
}

void SimulatedRank::finish_backward(const core::Status& status) {
  if (!status) return fail(status.error());
  const auto received = protocol_.receive();
  if (!received && received.error().code == core::Error::Code::mismatch) return name_those_who_differ(received.error());
  if (!received) return fail(received.error());
  record(received.value());
  carry_out(received.value().command);
}

void SimulatedRank::record(const tuner::StepProtocol::Received& received) {
  report_ = received.report;
  record_.finite = received.counts;
  record_.command = received.command;
  exec::Values average = gradients_.read(), after = executor_.residual();
  record_.digest = digest_of(average, after);
  world_.note(rank_, "settled", record_.digest);
  if (!options_.on_values) return;
  options_.on_values({rank_, record_, std::move(given_), std::move(average), std::move(before_), std::move(after),
                      std::move(parked_before_), executor_.residual(exec::Which::parked)});
}

// --- commands --------------------------------------------------------------------------------------------------------

void SimulatedRank::carry_out(const Command& command) {
  const std::optional<int64_t> bytes = protocol_.carry_out(command);
  if (!bytes) return lead();
  received_text_ = rank_ == 0 ? protocol_.announced_text() : std::string(static_cast<size_t>(*bytes), ' ');
  start({.kind = comm::Collective::Kind::broadcast,
         .out = reinterpret_cast<std::byte*>(received_text_.data()),
         .count = *bytes},
        [this](const core::Status& status) {
          if (status) return receive_strategy();
          fail({status.error().code, "the broadcast of a strategy failed: " + status.error().message});
        });
}

void SimulatedRank::receive_strategy() {
  if (options_.received) received_text_ = options_.received(rank_, received_text_);
  world_.after(world_.work_ns(rank_, options_.prepare_ns), rank_, [this] {
    protocol_.receive_strategy(received_text_);
    lead();
  });
}

void SimulatedRank::lead() {
  if (leader_) {
    const tuner::Action action = leader_(report_);
    const bool prepares = action.command.kind == Command::Kind::prepare;
    protocol_.announce(action.command, prepares ? file_text(*action.candidate) : "");
    world_.note(rank_, "announced",
                static_cast<uint64_t>(action.command.kind) << 32 | static_cast<uint32_t>(action.command.slot));
  }
  world_.after(world_.work_ns(rank_, options_.update_ns), rank_, [this] { end_step(); });
}

void SimulatedRank::end_step() {
  const exec::StepTimes& times = executor_.times();
  record_.step_ms = static_cast<double>(world_.now_ns() - began_ns_) * 1e-6;
  protocol_.end_step({.step_ms = record_.step_ms,
                      .compute_ms = record_.step_ms - times.encode_ms - times.decode_ms - times.wait_ms,
                      .comm_ms = times.comm_ms});
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
  identity_ = protocol_.identity();
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
