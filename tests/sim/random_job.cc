// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
#include "tests/sim/random_job.h"

#include <limits>
#include <set>
#include <string>
#include <utility>

#include "engine/core/hash.h"
#include "policies/cost/forward_pass.h"

namespace gradtune::sim {
namespace {

using core::DType;
using core::Rng;
using tuner::Command;

// The random stream for one purpose: it does not depend on other draws.
Rng stream(uint64_t seed, const char* name, uint64_t a = 0, uint64_t b = 0) {
  core::Hasher hasher;
  for (const uint64_t value : {seed, a, b}) hasher.add(value);
  return Rng(hasher.value()).fork(name);
}

core::GradientTable random_table(Rng rng) {
  std::vector<std::pair<int64_t, DType>> tensors = {{1, DType::f32}};  // never empty
  const DType dtypes[] = {DType::f32, DType::f32, DType::bf16, DType::f16};
  for (uint64_t left = 1 + rng.below(6); left > 0; --left) {
    tensors.push_back({static_cast<int64_t>(rng.below(rng.below(2) == 0 ? 40 : 900)), dtypes[rng.below(4)]});
  }
  return exec::make_table(tensors);
}

std::vector<std::string> every_option() {
  std::vector<std::string> options = exec::all_options(core::Place::device);
  for (std::string& option : exec::all_options(core::Place::host)) options.push_back(std::move(option));
  return options;
}

// About a third of the buckets may arrive during the next forward pass, if programs allow it.
core::Strategy with_late(core::Strategy strategy, Rng rng) {
  for (core::Bucket& bucket : strategy.buckets) {
    if (policies::can_be_late(bucket.option) && rng.below(3) == 0) bucket.due = core::Due::forward;
  }
  return strategy;
}

// Gives any legal command at any time: a rank 0 that decides at random.
class RandomCommands {
 public:
  RandomCommands(core::GradientTable table, std::vector<std::string> options, Rng rng)
      : table_(std::move(table)), options_(std::move(options)), rng_(rng) {}

  tuner::Action operator()(const core::StepReport& report) {
    learn(report);
    switch (rng_.below(8)) {
      case 0:
      case 1: return prepare();
      case 2:
      case 3: return run(pick(ready_));
      case 4:
      case 5: return pending_ ? run_unseen() : run(pick(ready_));
      case 6: return drop();
      default: return {};
    }
  }

 private:
  void learn(const core::StepReport& report) {
    if (!pending_ || (!report.prepared && !report.failed)) return;
    if (report.prepared) ready_.insert(*pending_);
    if (report.prepared && is_run_) slot_ = *pending_;
    pending_.reset();
    is_run_ = false;
  }

  // Takes back a preparation that is still under way, if any.
  tuner::Action prepare() {
    if (is_run_) return {};
    pending_ = next_slot_++;
    const policies::Candidate candidate{with_late(exec::random_strategy(table_, options_, rng_), rng_.fork("late")),
                                        "random"};
    return {{.kind = Command::Kind::prepare, .slot = *pending_},
            std::make_shared<const policies::Candidate>(candidate)};
  }

  tuner::Action run(int32_t slot) {
    slot_ = slot;
    return {{.kind = rng_.below(4) == 0 ? Command::Kind::commit : Command::Kind::run, .slot = slot}, nullptr};
  }

  // Runs a slot without knowing if it is prepared; if it is not, nothing may change.
  tuner::Action run_unseen() {
    is_run_ = true;
    return {{.kind = Command::Kind::run, .slot = *pending_}, nullptr};
  }

  tuner::Action drop() {
    if (is_run_) return {};
    int32_t slot = pick(ready_);
    if (pending_ && rng_.below(2) == 0) slot = *std::exchange(pending_, {});
    if (slot == slot_) return {};
    ready_.erase(slot);
    return {{.kind = Command::Kind::drop, .slot = slot}, nullptr};
  }

  int32_t pick(const std::set<int32_t>& slots) {
    return *std::next(slots.begin(), static_cast<int64_t>(rng_.below(slots.size())));
  }

  const core::GradientTable table_;
  const std::vector<std::string> options_;
  Rng rng_;
  std::set<int32_t> ready_ = {0};
  std::optional<int32_t> pending_;
  bool is_run_ = false;  // the pending slot was run, unseen
  int32_t slot_ = 0;     // in force
  int32_t next_slot_ = 1;
};

WorldOptions random_world(uint64_t seed, int size, Rng rng) {
  const double rates[] = {3e6, 25e6, 125e6, 1e9};
  return {
      .size = size,
      .seed = seed,
      .rank = {.bytes_per_second = rates[rng.below(4)], .latency_ns = 5'000 + static_cast<int64_t>(rng.below(100'000))},
      .jitter_ns = static_cast<int64_t>(rng.below(500'000)),
      .stall_probability = 0.05,
      .stall_ns = 5'000'000};
}

}  // namespace

std::optional<int> poisoned_rank(uint64_t seed, int size, int64_t step) {
  Rng rng = stream(seed, "poison", static_cast<uint64_t>(step));
  if (rng.below(8) > 0) return {};
  return static_cast<int>(rng.below(static_cast<uint64_t>(size)));
}

JobOptions random_job(uint64_t seed, int size) { return random_job(seed, size, every_option()); }

JobOptions random_job(uint64_t seed, int size, const std::vector<std::string>& options) {
  core::GradientTable table = random_table(stream(seed, "table"));
  table.forward_us = 1;
  Rng reads = stream(seed, "reads");
  for (core::TensorInfo& tensor : table.tensors) tensor.read_us = reads.uniform();
  Rng rng = stream(seed, "job");
  JobOptions job{.world = random_world(seed, size, stream(seed, "world"))};
  job.slowdown.assign(static_cast<size_t>(size), 1);
  job.slowdown[rng.below(job.slowdown.size())] = 1 + 2 * rng.uniform();
  job.rank.table = table;
  job.rank.executor.backward_ns = static_cast<int64_t>(rng.below(5'000'000));
  job.rank.noise = 0.2;
  job.rank.steps = 16;
  job.rank.start = {{with_late(exec::random_strategy(table, options, rng), rng.fork("late")), "start"}};
  job.rank.gradient = [table, seed, size](int rank, int64_t step) {
    Rng values = stream(seed, "gradient", static_cast<uint64_t>(rank), static_cast<uint64_t>(step));
    exec::Values gradient = exec::random_gradient(table, values);
    if (poisoned_rank(seed, size, step) == rank) {
      gradient[values.below(gradient.size())] = std::numeric_limits<float>::quiet_NaN();
    }
    return gradient;
  };
  job.rank.received = [seed](int rank, const std::string& text) {
    core::Hasher hasher;
    hasher.add(text);
    return stream(seed, "received", static_cast<uint64_t>(rank), hasher.value()).below(10) == 0 ? std::string() : text;
  };
  job.leader.script = RandomCommands(table, options, stream(seed, "commands"));
  return job;
}

}  // namespace gradtune::sim
