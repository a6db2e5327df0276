// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
#include "policies/cost/cost_model.h"

#include <cmath>

namespace gradtune::policies {

std::optional<size_t> number_of(const core::Option& option, const CostModel& model) {
  const auto options = model.options();
  const auto found = std::find(options.begin(), options.end(), option);
  if (found == options.end()) return {};
  return static_cast<size_t>(found - options.begin());
}

bool is_baseline(const core::Option& option, bool loses) {
  if (option == core::plain_all_reduce()) return true;
  return !loses && option.codecs.size() == 1 &&
         option == core::encoded_all_reduce(option.codecs[0], core::Place::device);
}

std::vector<double> ready_times_us(const core::GradientTable& table) {
  std::vector<double> times;
  double latest = 0;
  for (const core::TensorInfo& tensor : table.tensors) {
    if (std::isfinite(tensor.ready_us)) latest = std::max(latest, tensor.ready_us);
    times.push_back(latest);
  }
  return times;
}

double replay_us(const CostModel& model, const core::GradientTable& table, const core::Strategy& strategy) {
  const std::vector<double> ready_us = ready_times_us(table);
  Lanes lanes;
  for (const core::Bucket& bucket : strategy.buckets) {
    const auto option = number_of(bucket.option, model);
    core::check(option.has_value(), "a cost model is asked for an option that it does not have");
    int32_t last = 0;
    for (const core::Slice& slice : bucket.slices) last = std::max(last, slice.tensor);
    lanes.send(model.work(*option, core::numel(bucket), core::dtype_of(bucket, table)),
               ready_us[static_cast<size_t>(last)]);
  }
  return lanes.end_us(ready_us.empty() ? 0 : ready_us.back());
}

}  // namespace gradtune::policies
