// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
#include "policies/cost/forward_pass.h"

#include <algorithm>
#include <numeric>

namespace gradtune::policies {

ForwardPass forward_pass(const core::GradientTable& table) {
  const size_t size = table.tensors.size();
  std::vector<size_t> by_read(size);
  std::iota(by_read.begin(), by_read.end(), size_t{0});
  std::ranges::stable_sort(by_read, {}, [&](size_t t) { return table.tensors[t].read_us; });
  ForwardPass forward{.whole_us = 0, .after_us = std::vector<double>(size)};
  double updates_us = 0;
  for (size_t i = size; i-- > 0;) {  // the last read first; those without a reader come to the end
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

double forward_end_us(const CostModel& model, const core::GradientTable& table, const core::Strategy& strategy) {
  const std::vector<double> ready_us = ready_times_us(table);
  const ForwardPass forward = forward_pass(table);
  struct Message {
    Work work;
    double ready_us;
    double after_us;
    size_t last_tensor;
  };
  std::vector<Message> messages(strategy.buckets.size());
  for (size_t b = 0; b < messages.size(); ++b) {
    const core::Bucket& bucket = strategy.buckets[b];
    const auto option = number_of(bucket.option, model);
    core::check(option.has_value(), "a cost model is asked for an option that it does not have");
    Message& message = messages[b];
    message.work = model.work(*option, core::numel(bucket), core::dtype_of(bucket, table));
    message.last_tensor = 0;
    message.after_us = bucket.due == core::Due::backward ? forward.whole_us : 0;
    for (const core::Slice& slice : bucket.slices) {
      const auto tensor = static_cast<size_t>(slice.tensor);
      message.last_tensor = std::max(message.last_tensor, tensor);
      message.after_us = std::max(message.after_us, forward.after_us[tensor]);
    }
    message.ready_us = ready_us[message.last_tensor];
  }
  // Work on the thread of backward, and then on the host, is done in the order of readiness.
  std::vector<size_t> by_ready(messages.size());
  std::iota(by_ready.begin(), by_ready.end(), size_t{0});
  std::ranges::stable_sort(by_ready, {}, [&](size_t b) { return messages[b].last_tensor; });
  double delay_us = 0, host_us = 0, link_us = 0, unpack_us = 0;
  for (const size_t b : by_ready) {
    Message& message = messages[b];
    delay_us += message.work[kBackward];
    message.ready_us += delay_us;
    if (message.work[kHost] > 0) message.ready_us = host_us = std::max(host_us, message.ready_us) + message.work[kHost];
  }
  double end_us = forward.whole_us + delay_us + (ready_us.empty() ? 0 : ready_us.back());
  std::vector<bool> has_left(messages.size());
  for (const core::Issue& issue : strategy.order) {
    const auto b = static_cast<size_t>(issue.bucket);
    if (has_left[b]) continue;
    has_left[b] = true;
    const Message& message = messages[b];
    double now_us = message.ready_us;
    if (message.work[kLink] > 0) now_us = link_us = std::max(link_us, now_us) + message.work[kLink];
    if (message.work[kUnpack] > 0) now_us = unpack_us = std::max(unpack_us, now_us) + message.work[kUnpack];
    end_us = std::max(end_us, now_us + message.after_us);
  }
  return end_us;
}

}  // namespace gradtune::policies
