// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
#include "tests/sim/simulated_rank.h"

#include <algorithm>
#include <span>
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
      leader_(std::move(leader)),
      rng_(core::Rng(world.options().seed).fork("rank " + std::to_string(rank_))),
      gradients_(options.table),
      data_(sim::record(std::move(data), Call::Group::data, world, calls_)),
      control_(sim::record(std::move(control), Call::Group::control, world, calls_)),
      executor_(world, *data_, *control_, gradients_, options.executor,
                [this](bool finite) { return protocol_.control_word(finite); }),
      protocol_(executor_, rank_, options.limits, &tuner::read_candidate) {
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
  forward(gates(static_cast<int64_t>(pace * static_cast<double>(options_.forward_ns))), 0, 0, pace);
}

// The last one is the end of forward.
std::vector<SimulatedRank::Gate> SimulatedRank::gates(int64_t forward_ns) const {
  std::vector<Gate> gates;
  const core::Strategy& strategy = executor_.strategy();
  for (size_t b = 0; b < strategy.buckets.size() && executor_.is_under_way(); ++b) {
    if (strategy.buckets[b].due != core::Due::forward) continue;
    double read = 1;  // relative to forward's length
    for (const core::Slice& slice : strategy.buckets[b].slices) {
      const double read_us = options_.table.tensors[static_cast<size_t>(slice.tensor)].read_us;
      read = std::min(read, options_.table.forward_us > 0 ? std::max(read_us, 0.0) / options_.table.forward_us : 0);
    }
    gates.push_back({static_cast<int64_t>(read * static_cast<double>(forward_ns)), static_cast<int32_t>(b)});
  }
  std::ranges::stable_sort(gates, {}, &Gate::at_ns);
  gates.push_back({forward_ns, -1});
  return gates;
}

void SimulatedRank::forward(std::vector<Gate> gates, size_t next, int64_t since_ns, double pace) {
  const Gate gate = gates[next];
  world_.after(world_.work_ns(rank_, gate.at_ns - since_ns), rank_, [this, gates = std::move(gates), next, gate, pace] {
    if (gate.bucket < 0) return settle([this, pace] { begin_backward(pace); });
    executor_.await(gate.bucket, [this, gates, next, gate, pace](const core::Status& status) {
      if (!status) return fail(status.error());
      forward(gates, next + 1, gate.at_ns, pace);
    });
  });
}

// Waits for late buckets, and reports the outcome of their step.
void SimulatedRank::settle(World::Event then) {
  executor_.drain([this, then = std::move(then)](const core::Status& status) {
    if (!status) return fail(status.error());
    if (StepRecord* of = std::exchange(unrecorded_, nullptr)) record(*of);
    then();
  });
}

void SimulatedRank::begin_backward(double pace) {
  values_ = {.rank = rank_, .given = options_.gradient(rank_, step())};
  if (options_.on_values) {
    values_.before = executor_.residual();
    values_.parked_before = executor_.residual(exec::Which::parked);
  }
  gradients_.write(values_.given);
  protocol_.begin(/*alike=*/0);
  executor_.backward(pace, [this](const core::Status& status) { finish_backward(status); });
}

void SimulatedRank::finish_backward(const core::Status& status) {
  if (!status) return fail(status.error());
  if (leader_.driver != nullptr) leader_.driver->saw_ready(executor_.ready_times());
  auto received = protocol_.receive();
  if (!received && received.error().code == core::Error::Code::mismatch) return name_those_who_differ(received.error());
  if (!received) return fail(received.error());
  received_ = std::move(received).value();
  record_.finite = received_.counts;
  record_.command = received_.command;
  unrecorded_ = &record_;
  const bool is_last = step() + 1 == options_.steps;
  if (record_.command.kind == Command::Kind::keep && executor_.is_under_way() && !is_last) {
    return carry_out(record_.command);
  }
  settle([this] { carry_out(record_.command); });
}

void SimulatedRank::record(StepRecord& record) {
  values_.average = gradients_.read();
  values_.after = executor_.residual();
  record.digest = digest_of(values_.average, values_.after);
  world_.note(rank_, "settled", record.digest);
  if (!options_.on_values) return;
  values_.record = record;
  values_.parked_after = executor_.residual(exec::Which::parked);
  options_.on_values(std::move(values_));
}

// --- commands --------------------------------------------------------------------------------------------------------

void SimulatedRank::carry_out(const Command& command) {
  const int64_t bytes = protocol_.carry_out(command);
  if (bytes == 0) return lead();
  received_text_ = rank_ == 0 ? protocol_.announced_text() : std::string(static_cast<size_t>(bytes), ' ');
  start({.kind = comm::Collective::Kind::broadcast,
         .out = reinterpret_cast<std::byte*>(received_text_.data()),
         .count = bytes},
        [this](const core::Status& status) {
          if (status) return receive_strategy();
          fail({status.error().code, "the broadcast of a strategy failed: " + status.error().message});
        });
}

void SimulatedRank::receive_strategy() {
  if (options_.received) received_text_ = options_.received(rank_, received_text_);
  world_.after(world_.work_ns(rank_, options_.prepare_ns), rank_, [this] {
    static_cast<void>(protocol_.receive_strategy(received_text_));  // the next word reports a failure
    lead();
  });
}

void SimulatedRank::lead() {
  if (tuner::Driver* driver = leader_.driver; driver != nullptr) {
    const tuner::Action action = driver->on_step(received_, protocol_);
    announce(action, driver->text_of(action));
  } else if (leader_.script) {
    const tuner::Action action = leader_.script(received_.report);
    announce(action, action.candidate ? file_text(*action.candidate) : "");
  }
  world_.after(world_.work_ns(rank_, options_.update_ns), rank_, [this] { end_step(); });
}

void SimulatedRank::announce(const tuner::Action& action, std::string text) {
  const auto kind = static_cast<uint64_t>(action.command.kind);
  protocol_.announce(action.command, std::move(text));
  world_.note(rank_, "announced", kind << 32 | static_cast<uint32_t>(action.command.slot));
}

void SimulatedRank::end_step() {
  const exec::StepTimes& times = executor_.times();
  record_.step_ms = static_cast<double>(world_.now_ns() - began_ns_) * 1e-6;
  protocol_.end_step({.step_ms = record_.step_ms,
                      .compute_ms = record_.step_ms - times.encode_ms - times.decode_ms - times.wait_ms,
                      .comm_ms = times.comm_ms});
  steps_.push_back(std::move(record_));
  if (unrecorded_ != nullptr) unrecorded_ = &steps_.back();
  ended_ns_ = world_.now_ns();
  if (!ended()) begin_step();
}

std::string SimulatedRank::file_text(const policies::Candidate& candidate) const {
  return tuner::to_json(
      tuner::strategy_file(options_.table, data_->size(), options_.fidelity, candidate.label, candidate.strategy));
}

std::string SimulatedRank::exported() const { return file_text({executor_.strategy(), "in force"}); }

// --- failures --------------------------------------------------------------------------------------------------------

// The first rank that finds the mismatch ends, and so may end the comparison for others; they know of the mismatch
// all the same.
void SimulatedRank::name_those_who_differ(const core::Error& error) {
  identities_.assign(static_cast<size_t>(data_->size()) + 1, protocol_.identity());
  const std::span<uint64_t> own = std::span(identities_).first(1), of_all = std::span(identities_).subspan(1);
  start({.kind = comm::Collective::Kind::all_gather,
         .in = reinterpret_cast<const std::byte*>(own.data()),
         .out = reinterpret_cast<std::byte*>(of_all.data()),
         .count = sizeof own[0]},
        [this, error, of_all](const core::Status& status) {
          const std::string who = status ? "rank " + tuner::differing_ranks(of_all)
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
