// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// The timeline predicts by the executor's rules, so it must end when the executor's own core does. Random strategies
// on random jobs are pumped in virtual time as the executor's threads do it, beside Timeline::run.
#include <gtest/gtest.h>

#include <array>
#include <deque>
#include <functional>
#include <limits>
#include <optional>
#include <set>

#include "engine/exec/scheduler.h"
#include "policies/cost/cost_model.h"
#include "policies/cost/program_cost.h"
#include "policies/cost/timeline.h"
#include "policies/space/decision_tree.h"
#include "tests/engine/exec/gradient_arenas.h"

namespace gradtune::exec {
namespace {

using core::Level;
using core::Place;
using Kind = Action::Kind;

// The host, the threads of messages and the links: each works on one item after the other, in order of arrival.
enum At : size_t { kHost, kMessages, kNetwork, kInside, kServers };
struct Server {
  policies::Worker worker;
  bool is_slowed = true;  // slowed down if cores are short
  std::deque<Action> queue = {};
  double left_us = 0;  // for the front item, if it had the cores for itself
};

// A collective whose link is free again.
struct Travelling {
  Action action;
  double end_us = 0;
};

class VirtualPump {
 public:
  // `times`: of each operation.
  VirtualPump(const Program& program, const core::GradientTable& table,
              std::vector<std::vector<policies::OpCost>> times, const policies::Cores& cores)
      : program_(program),
        table_(table),
        ready_us_(policies::ready_times_us(table)),
        times_(std::move(times)),
        cores_(cores) {}

  // Does the same as Executor::tensor_ready, drain_device_ops, finish_backward and await.
  double run() {
    scheduler_.begin(program_);
    tell([&](std::vector<Action>& actions) { scheduler_.start(actions); });
    std::vector<int32_t> missing;
    for (const BucketProgram& bucket : program_.buckets) missing.push_back(bucket.tensors);
    double before_us = 0;
    for (size_t tensor = 0; tensor < ready_us_.size(); ++tensor) {
      work(policies::Worker::backward, ready_us_[tensor] - before_us);
      before_us = ready_us_[tensor];
      for (const Piece& piece : program_.pieces_of_tensor[tensor]) {
        if (--missing[static_cast<size_t>(piece.bucket)] > 0) continue;
        const int32_t leading = leading_device_ops(program_.buckets[static_cast<size_t>(piece.bucket)]);
        for (int32_t op = 0; op < leading; ++op) work(policies::Worker::device, us_of(piece.bucket, op));
        tell([&](std::vector<Action>& actions) { scheduler_.bucket_ready(piece.bucket, leading, actions); });
      }
      drain();
    }
    wait_until([&] { return backward_done_; });
    forward();
    wait_until([&] { return finished_; });  // the bucket has arrived by now
    return is_stuck_ ? -1 : now_us_;
  }

 private:
  // Does the same as Executor::wait_until.
  void wait_until(const std::function<bool()>& holds) {
    while (!holds() && !is_stuck_) {
      if (!device_.empty()) {
        drain();
        continue;
      }
      const double next_us = earliest();
      is_stuck_ = next_us == std::numeric_limits<double>::infinity();
      if (!is_stuck_) others_until(next_us);
    }
  }

  // The optimizer's step and the next forward pass: the first read of a tensor with a part in a late bucket waits
  // for it and updates it.
  void forward() {
    const auto is_late = [&](int32_t tensor) {
      return std::ranges::any_of(program_.pieces_of_tensor[static_cast<size_t>(tensor)], [&](const Piece& piece) {
        return program_.buckets[static_cast<size_t>(piece.bucket)].due == core::Due::forward;
      });
    };
    const auto update_us = [&](int32_t tensor) {
      return static_cast<double>(table_.tensors[static_cast<size_t>(tensor)].numel) * table_.update_element_us;
    };
    std::vector<int32_t> late;
    double updates_us = 0;
    for (int32_t tensor = 0; tensor < static_cast<int32_t>(table_.tensors.size()); ++tensor) {
      if (is_late(tensor)) {
        late.push_back(tensor);
      } else {
        updates_us += update_us(tensor);
      }
    }
    work(policies::Worker::backward, updates_us);
    const auto read_us = [&](int32_t tensor) { return table_.tensors[static_cast<size_t>(tensor)].read_us; };
    std::ranges::stable_sort(late, {}, read_us);
    double before_us = 0;
    for (const int32_t tensor : late) {
      work(policies::Worker::backward, read_us(tensor) - before_us);
      before_us = read_us(tensor);
      for (const Piece& piece : program_.pieces_of_tensor[static_cast<size_t>(tensor)]) {
        if (program_.buckets[static_cast<size_t>(piece.bucket)].due == core::Due::backward) continue;
        wait_until([&] { return late_done_.contains(piece.bucket); });
      }
      work(policies::Worker::backward, update_us(tensor));
    }
    work(policies::Worker::backward, table_.forward_us - before_us);
  }

  const policies::OpCost& time_of(int32_t bucket, int32_t op) const {
    return times_[static_cast<size_t>(bucket)][static_cast<size_t>(op)];
  }
  double us_of(int32_t bucket, int32_t op) const { return time_of(bucket, op).busy_us; }

  // The device is busy; the others continue beside it.
  void work(policies::Worker worker, double us) {
    on_device_ = worker;
    const bool needs_cores = cores_.computing > 0;  // otherwise a device works
    while (us > 0) {
      const double my_speed = needs_cores ? speed() : 1, begin_us = now_us_;
      const double end_us = now_us_ + us / my_speed, next_us = std::min(earliest(), end_us);
      others_until(next_us);
      us = next_us == end_us ? 0 : us - (next_us - begin_us) * my_speed;
    }
    on_device_.reset();
  }

  double speed() const {
    std::array<bool, policies::kWorkers> at_work{};
    for (const Server& server : servers_) {
      if (!server.queue.empty()) at_work[static_cast<size_t>(server.worker)] = true;
    }
    if (on_device_) at_work[static_cast<size_t>(*on_device_)] = true;
    return policies::speed(cores_, at_work);
  }
  double end_of(const Server& server) const { return now_us_ + server.left_us / (server.is_slowed ? speed() : 1); }

  void drain() {
    while (!device_.empty()) {
      const Action action = device_.front();
      device_.pop_front();
      work(policies::Worker::device, us_of(action.bucket, action.op));
      tell([&](std::vector<Action>& actions) { scheduler_.op_done(action.bucket, action.op, actions); });
    }
  }

  double earliest() const {
    double least = std::numeric_limits<double>::infinity();
    for (const Server& server : servers_) least = server.queue.empty() ? least : std::min(least, end_of(server));
    for (const Travelling& travelling : travelling_) least = std::min(least, travelling.end_us);
    return least;
  }

  // Advances no further than to the next event.
  void others_until(double end_us) {
    const double next_us = earliest();
    Server* next = nullptr;
    for (Server& server : servers_) {
      if (!server.queue.empty() && end_of(server) == next_us) next = &server;
    }
    const double passed_us = std::min(next_us, end_us) - now_us_, speed_of_work = speed();
    for (Server& server : servers_) {
      if (!server.queue.empty()) server.left_us -= passed_us * (server.is_slowed ? speed_of_work : 1);
    }
    now_us_ += passed_us;
    if (next_us > end_us || arrive()) return;
    if (next != nullptr) {
      Server& server = *next;
      const Action done = server.queue.front();
      server.queue.pop_front();
      if (!server.queue.empty()) server.left_us = us_of(server, server.queue.front());
      const policies::OpCost& time = time_of(done.bucket, done.op);
      const bool is_handled = &server == &servers_[kMessages];
      if (is_handled && time.busy_us > 0) {
        serve(link_of(done), done);
      } else if (const double wait_us = time.wait_us; wait_us > 0) {
        travelling_.push_back({done, now_us_ + wait_us});
      } else {
        tell([&](std::vector<Action>& actions) { scheduler_.op_done(done.bucket, done.op, actions); });
      }
    }
  }

  // Delivers a travelling collective that has arrived, if any.
  bool arrive() {
    const auto there =
        std::ranges::find_if(travelling_, [&](const Travelling& each) { return each.end_us <= now_us_; });
    if (there == travelling_.end()) return false;
    const Action done = there->action;
    travelling_.erase(there);
    tell([&](std::vector<Action>& actions) { scheduler_.op_done(done.bucket, done.op, actions); });
    return true;
  }

  // Passes an event to the scheduler, and handles its answer.
  void tell(const std::function<void(std::vector<Action>&)>& event) {
    std::vector<Action> actions;
    event(actions);
    for (const Action& action : actions) {
      switch (action.kind) {
        case Kind::run_device: device_.push_back(action); break;
        case Kind::run_host: serve(servers_[kHost], action); break;
        case Kind::start:
          serve(time_of(action.bucket, action.op).messages_us > 0 ? servers_[kMessages] : link_of(action), action);
          break;
        case Kind::control: tell([&](std::vector<Action>& more) { scheduler_.control_done(more); }); break;
        case Kind::late_done: late_done_.insert(action.bucket); break;
        case Kind::backward_done: backward_done_ = true; break;
        case Kind::finished: finished_ = true; break;
      }
    }
  }

  void serve(Server& server, const Action& action) {
    if (server.queue.empty()) server.left_us = us_of(server, action);
    server.queue.push_back(action);
  }
  double us_of(const Server& server, const Action& action) const {
    const policies::OpCost& time = time_of(action.bucket, action.op);
    return &server == &servers_[kMessages] ? time.messages_us : time.busy_us;
  }
  Server& link_of(const Action& action) {
    return servers_[policies::uses_network(std::get<Collective>(op_of(action).work).level) ? kNetwork : kInside];
  }

  const Op& op_of(const Action& action) const {
    return program_.buckets[static_cast<size_t>(action.bucket)].ops[static_cast<size_t>(action.op)];
  }

  const Program& program_;
  const core::GradientTable& table_;
  const std::vector<double> ready_us_;
  const std::vector<std::vector<policies::OpCost>> times_;
  Scheduler scheduler_;
  const policies::Cores cores_;
  std::optional<policies::Worker> on_device_;
  std::array<Server, kServers> servers_ = {{{policies::Worker::host},
                                            {policies::Worker::messages},
                                            {policies::Worker::network, /*is_slowed=*/false},
                                            {policies::Worker::link_intra}}};
  std::vector<Travelling> travelling_;
  std::deque<Action> device_;
  double now_us_ = 0;
  std::set<int32_t> late_done_;
  bool backward_done_ = false, finished_ = false, is_stuck_ = false;
};

double random_us(core::Rng& rng, double most) { return most * (0.01 + rng.uniform()); }

policies::CostTable random_costs(const core::Ranks& ranks, core::Rng& rng) {
  policies::CostTable table{.ranks = ranks};
  using Step = core::Step::Kind;
  for (const Step kind : {Step::all_reduce, Step::reduce_scatter, Step::all_gather, Step::all_to_all, Step::reduce,
                          Step::broadcast, Step::gather}) {
    for (const Level level : {Level::flat, Level::intra, Level::inter}) {
      table.collectives.push_back({kind, level, random_us(rng, 50), random_us(rng, 0.1)});
      if (rng.below(2) == 0) table.collectives.back().wait_us = rng.uniform() * table.collectives.back().message_us;
    }
  }
  for (const core::CompressorSpec& codec : {core::CompressorSpec{"bf16"}, core::CompressorSpec{"topk", 0.1}}) {
    for (const Place place : {Place::device, Place::host}) {
      table.codecs.push_back({codec, place, random_us(rng, 20), random_us(rng, 0.1), random_us(rng, 20),
                              random_us(rng, 0.1), random_us(rng, 0.1)});
    }
  }
  if (rng.below(2) == 0) {
    table.cores = {0.5 + 2 * rng.uniform(), 2.0 * static_cast<double>(rng.below(2)), 1, rng.uniform()};
  }
  table.scale_us = random_us(rng, 5);
  table.scale_element_us = random_us(rng, 0.02);
  return table;
}

core::GradientTable random_job(core::Rng& rng) {
  std::vector<std::pair<int64_t, core::DType>> tensors;
  for (uint64_t count = 1 + rng.below(8); count > 0; --count) {
    tensors.emplace_back(48 * (1 + static_cast<int64_t>(rng.below(80))),
                         core::kDTypes[rng.below(3)]);  // whole shards, so they are not staged
  }
  core::GradientTable table = make_table(tensors);
  double ready_us = 0;
  for (core::TensorInfo& tensor : table.tensors) {
    tensor.ready_us = ready_us;
    ready_us += random_us(rng, 400);
    tensor.read_us = random_us(rng, 2000);
    table.forward_us = std::max(table.forward_us, tensor.read_us);
  }
  table.forward_us += random_us(rng, 200);
  table.update_element_us = random_us(rng, 0.01);
  return table;
}

// Operations that compiling inserted before and after the steps are a pass over the bucket.
std::vector<std::vector<policies::OpCost>> times_of(const Program& program, const core::GradientTable& table,
                                                    const policies::CostTable& cost) {
  std::vector<std::vector<policies::OpCost>> all;
  for (size_t b = 0; b < program.buckets.size(); ++b) {
    const core::Bucket& bucket = program.strategy.buckets[b];
    const int64_t numel = core::numel(bucket);
    const auto steps = policies::program_op_costs(cost, bucket.option, {numel, core::matrices_of(bucket, table)},
                                                  compress::known_traits(), core::dtype_of(bucket, table))
                           .value();
    std::vector<policies::OpCost> times;
    for (const Op& op : program.buckets[b].ops) {
      times.push_back(op.step >= 0 ? steps[static_cast<size_t>(op.step)]
                                   : policies::OpCost{.busy_us = policies::pass_us(cost, numel)});
    }
    all.push_back(std::move(times));
  }
  return all;
}

// A rank that does every step, and copies nothing between them: the timeline's ranks are alike, but only one is the
// root of a gather.
bool is_plain(const Program& program) {
  for (size_t b = 0; b < program.buckets.size(); ++b) {
    size_t steps = 0;
    for (const Op& op : program.buckets[b].ops) {
      const bool is_copy = op.is<Load>() || op.is<Store>();
      // A bucket of fp32 is copied if its shards would differ in length.
      if (op.is<Pack>() || (is_copy && program.buckets[b].dtype == core::DType::f32)) return false;
      steps += op.step >= 0 ? 1 : 0;
    }
    if (steps != program.strategy.buckets[b].option.steps.size()) return false;
  }
  return true;
}

void check(const core::Ranks& ranks, const std::vector<policies::Steps>& programs, uint64_t seed, int jobs, int least) {
  const core::Seat seat =
      ranks.has_levels() ? core::seat(0, ranks.size, ranks.local_size) : core::Seat{.rank = 0, .size = ranks.size};
  core::Rng rng(seed);
  int compared = 0;
  for (int job = 0; job < jobs; ++job) {
    const core::GradientTable table = random_job(rng);
    std::vector<std::string> options;
    for (int i = 0; i < 3; ++i) {
      const core::CompressorSpec codec =
          rng.below(2) == 0 ? core::CompressorSpec{"bf16"} : core::CompressorSpec{"topk", 0.1};
      options.push_back(to_string(policies::with_codecs(programs[rng.below(programs.size())], codec, codec)));
    }
    core::Strategy strategy = random_strategy(table, options, rng);
    for (core::Bucket& bucket : strategy.buckets) {
      if (rng.below(3) == 0) bucket.due = core::Due::forward;
    }
    const auto program = compile(strategy, table, seat);
    if (!program || !is_plain(*program.value())) continue;  // for example, summing payloads that cannot be summed
    const policies::CostTable cost = random_costs(ranks, rng);
    auto timeline = policies::Timeline::make(table, strategy, cost, compress::known_traits());
    ASSERT_TRUE(timeline.ok()) << timeline.error().message;
    VirtualPump pump(*program.value(), table, times_of(*program.value(), table, cost), cost.cores);
    const double executed = pump.run();
    ASSERT_NEAR(timeline.value().run(), executed, 1e-6 * executed)
        << "job " << job << ": " << to_string(strategy.buckets[0].option);
    ++compared;
  }
  EXPECT_GE(compared, least);
}

constexpr Place kBoth[] = {Place::device, Place::host};

TEST(TimelineConformance, EndsWhenTheExecutorsCoreDoes) {
  std::vector<policies::Steps> programs = policies::flat_programs(kBoth);
  for (policies::Steps& steps : policies::flat_summing_programs(kBoth)) programs.push_back(std::move(steps));
  check({.size = 4}, programs, 1, 3000, 1000);
}

TEST(TimelineConformance, EndsWhenTheExecutorsCoreDoesOverLevels) {
  check({.size = 4, .local_size = 2}, policies::hierarchical_programs(kBoth), 2, 6000, 500);
}

TEST(TimelineConformance, EndsWhenTheExecutorsCoreDoesAlongDimensions) {
  for (const int size : {4, 12}) {
    std::vector<policies::Steps> programs;
    for (const Place place : kBoth) programs.push_back(core::recursive_doubling({}, place, size).steps);
    check({.size = size}, programs, 3, 300, 200);
  }
}

}  // namespace
}  // namespace gradtune::exec
