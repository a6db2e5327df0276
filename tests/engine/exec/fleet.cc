// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
#include "tests/engine/exec/fleet.h"

#include <numeric>

#include "tests/suites/communicator_ranks.h"

namespace gradtune::exec {

std::vector<Values> random_gradients(const core::GradientTable& table, int size, core::Rng& rng) {
  std::vector<Values> gradients;
  for (int r = 0; r < size; ++r) gradients.push_back(random_gradient(table, rng));
  return gradients;
}

std::vector<RankGroups> make_groups(int size, int local_size, const comm::ThreadGroupOptions& data,
                                    const comm::ThreadGroupOptions& control) {
  auto flat = comm::make_thread_group(size, data), words = comm::make_thread_group(size, control);
  std::vector<RankGroups> ranks;
  for (int r = 0; r < size; ++r) {
    const core::Seat seat = local_size > 0 ? core::seat(r, size, local_size) : core::Seat{.rank = r, .size = size};
    const auto at = static_cast<size_t>(r);
    ranks.push_back({.seat = seat, .flat = std::move(flat[at]), .control = std::move(words[at])});
  }
  if (local_size == 0) return ranks;
  for (int node = 0; node < size / local_size; ++node) {
    auto group = comm::make_thread_group(local_size, data);
    for (int i = 0; i < local_size; ++i) {
      ranks[static_cast<size_t>(node * local_size + i)].intra = std::move(group[static_cast<size_t>(i)]);
    }
  }
  for (int i = 0; i < local_size; ++i) {
    auto group = comm::make_thread_group(size / local_size, data);
    for (int node = 0; node < size / local_size; ++node) {
      ranks[static_cast<size_t>(node * local_size + i)].inter = std::move(group[static_cast<size_t>(node)]);
    }
  }
  return ranks;
}

Rank::Rank(const core::GradientTable& table, RankGroups groups, const ExecutorOptions& options,
           std::unique_ptr<HostDevice> device)
    : ready_order(table.tensors.size()),
      device_(std::move(device)),
      gradients_(device_ ? on_device(table) : table, device_.get()),
      groups_(std::move(groups)) {
  ExecutorOptions own = options;
  own.device = device_.get();
  executor_ = std::make_unique<Executor>(groups_.view(), clock_, own, [this](bool finite) {
    const auto hash = static_cast<double>(core::hash(executor_->strategy()) >> 11);  // exact in a double
    word_ = {finite ? 0.0 : 1.0, hash, -hash};
    return std::span<double>(word_);
  });
  executor_->set_gradients(gradients_.table(), gradients_.arenas());
  std::iota(ready_order.begin(), ready_order.end(), 0);
}

void Rank::close() {
  if (device_) device_->close();
  executor_->stop();
  groups_ = {};
}

Values Rank::residual() {
  if (device_) executor_->carried();  // brings them home
  core::GradientTable table = gradients_.table();
  for (core::TensorInfo& tensor : table.tensors) tensor.space = core::Space::host;
  const auto program = compile(executor_->strategy(), table, groups_.seat);
  return gradients_.read(*program.value(), executor_->residuals());
}

core::Status Rank::backward() {
  if (core::Status begun = executor_->begin_step(); !begun) return begun;
  for (const int32_t tensor : ready_order) executor_->tensor_ready(tensor);
  return executor_->finish_backward();
}

core::Status Rank::settle() {
  const core::Result<bool> counts = executor_->conclude(finite());
  return counts ? executor_->drain() : counts.error();
}

core::Status Rank::step(const Values& gradient) {
  load(gradient);
  if (core::Status status = backward(); !status) return status;
  if (word_[1] != -word_[2]) return core::Error{core::Error::Code::mismatch, "ranks run different strategies"};
  return settle();
}

Fleet::Fleet(int size, const core::GradientTable& table, const ExecutorOptions& options,
             const comm::ThreadGroupOptions& data, const comm::ThreadGroupOptions& control)
    : Fleet(make_groups(size, 0, data, control), table, options) {}

Fleet::Fleet(std::vector<RankGroups> groups, const core::GradientTable& table, const ExecutorOptions& options,
             const std::optional<HostDeviceOptions>& device) {
  for (RankGroups& own : groups) {
    std::unique_ptr<HostDevice> of_rank;
    if (device) {
      HostDeviceOptions seeded = *device;
      seeded.seed += 100 * ranks_.size();
      of_rank = std::make_unique<HostDevice>(std::move(seeded));
    }
    ranks_.push_back(std::make_unique<Rank>(table, std::move(own), options, std::move(of_rank)));
  }
}

void Fleet::put_in_force(const core::Strategy& strategy, bool is_committed) {
  const int32_t before = slot_;
  slot_ = before == 0 ? 1 : 0;
  for (auto& rank : ranks_) {
    rank->executor().prepare(slot_, strategy).value();
    is_committed ? rank->executor().commit(slot_) : rank->executor().run(slot_);
    if (before >= 0) rank->executor().drop(before);
  }
}

std::vector<core::Status> Fleet::step(const std::vector<Values>& gradients) {
  std::vector<core::Status> statuses(ranks_.size());
  suites::on_every_rank(
      size(), [&](int r) { statuses[static_cast<size_t>(r)] = rank(r).step(gradients[static_cast<size_t>(r)]); });
  return statuses;
}

std::vector<Values> Fleet::residuals() {
  std::vector<Values> values;
  for (auto& rank : ranks_) values.push_back(rank->residual());
  return values;
}

}  // namespace gradtune::exec
