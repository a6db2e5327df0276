// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
#include "policies/cost/forward_pass.h"

#include <algorithm>
#include <numeric>
#include <utility>

namespace gradtune::policies {

ForwardPass forward_pass(const core::GradientTable& table) {
  const size_t size = table.tensors.size();
  std::vector<size_t> by_read(size);
  std::iota(by_read.begin(), by_read.end(), size_t{0});
  std::ranges::stable_sort(by_read, {}, [&](size_t t) { return table.tensors[t].read_us; });
  ForwardPass forward{.whole_us = 0, .after_us = std::vector<double>(size)};
  double updates_us = 0;
  for (size_t i = size; i-- > 0;) {  // the last read first; tensors without a reader come to the end
    const core::TensorInfo& tensor = table.tensors[by_read[i]];
    updates_us += static_cast<double>(tensor.numel) * table.update_element_us;
    forward.after_us[by_read[i]] = updates_us + std::max(table.forward_us - std::max(tensor.read_us, 0.0), 0.0);
  }
  forward.whole_us = updates_us + table.forward_us;
  for (size_t t = 0; t < size; ++t) {
    if (table.tensors[t].read_us < 0) forward.after_us[t] = forward.whole_us;
  }
  return forward;
}

bool can_be_late(const core::Option& option) {
  return std::ranges::count(option.steps, core::Step::Kind::encode, &core::Step::kind) <= 1;
}

void assume_forward(core::GradientTable& table, double share) {
  const std::vector<double> ready_us = ready_times_us(table);
  double read_us = 0;
  for (size_t t = table.tensors.size(); t-- > 0;) {
    table.tensors[t].read_us = read_us;
    read_us += share * (ready_us[t] - (t > 0 ? ready_us[t - 1] : 0));
  }
  table.forward_us = read_us;
}

ForwardReplay::ForwardReplay(const CostModel& model, const core::GradientTable& table)
    : model_(model), table_(table), ready_us_(ready_times_us(table)), forward_(forward_pass(table)) {}

void ForwardReplay::send(std::span<const core::Slice> slices, size_t option, core::Due due) {
  Message message{
      .work = {}, .ready_us = 0, .after_us = due == core::Due::backward ? forward_.whole_us : 0, .last = {}};
  int64_t numel = 0;
  for (const core::Slice& slice : slices) {
    numel += slice.length;
    message.last = std::max(message.last, {slice.tensor, slice.offset});
    message.after_us = std::max(message.after_us, forward_.after_us[static_cast<size_t>(slice.tensor)]);
  }
  message.work = model_.work(option, numel, table_.tensors[static_cast<size_t>(slices.front().tensor)].dtype);
  message.ready_us = ready_us_[static_cast<size_t>(message.last.first)];
  messages_.push_back(message);
}

double ForwardReplay::end_us() {
  // Work on the thread of backward, and then on the host, is done in the order of readiness.
  by_ready_.resize(messages_.size());
  std::iota(by_ready_.begin(), by_ready_.end(), size_t{0});
  std::ranges::sort(by_ready_, {}, [&](size_t m) { return messages_[m].last; });
  double delay_us = 0, host_us = 0, link_us = 0, unpack_us = 0;
  for (const size_t m : by_ready_) {
    Message& message = messages_[m];
    delay_us += message.work[kBackward];
    message.ready_us += delay_us;
    if (message.work[kHost] > 0) message.ready_us = host_us = std::max(host_us, message.ready_us) + message.work[kHost];
  }
  double end_us = forward_.whole_us + delay_us + (ready_us_.empty() ? 0 : ready_us_.back());
  for (const Message& message : messages_) {
    double now_us = message.ready_us;
    if (message.work[kLink] > 0) now_us = link_us = std::max(link_us, now_us) + message.work[kLink];
    if (message.work[kUnpack] > 0) now_us = unpack_us = std::max(unpack_us, now_us) + message.work[kUnpack];
    end_us = std::max(end_us, now_us + message.after_us);
  }
  messages_.clear();
  return end_us;
}

double forward_end_us(const CostModel& model, const core::GradientTable& table, const core::Strategy& strategy) {
  ForwardReplay replay(model, table);
  std::vector<bool> has_left(strategy.buckets.size());
  for (const core::Issue& issue : strategy.order) {
    const auto b = static_cast<size_t>(issue.bucket);
    if (has_left[b]) continue;
    has_left[b] = true;
    const core::Bucket& bucket = strategy.buckets[b];
    const auto option = number_of(bucket.option, model);
    core::check(option.has_value(), "a cost model is asked for an option that it does not have");
    replay.send(bucket.slices, *option, bucket.due);
  }
  return replay.end_us();
}

}  // namespace gradtune::policies
