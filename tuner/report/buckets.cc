// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
#include "tuner/report/buckets.h"

#include <algorithm>
#include <map>

namespace gradtune::tuner {

std::vector<BucketRow> rows_of(const core::Strategy& strategy, const core::GradientTable& table,
                               core::TraitsTable known) {
  std::vector<BucketRow> rows;
  std::map<std::string, int> kinds;
  const auto tensor = [&](const core::Slice& slice) -> const core::TensorInfo& {
    return table.tensors[static_cast<size_t>(slice.tensor)];
  };
  for (const core::Bucket& bucket : strategy.buckets) {
    const int64_t elements = core::numel(bucket);
    BucketRow row{.elements = elements,
                  .bytes = elements * core::bytes_per_element(core::dtype_of(bucket, table)),
                  .first = tensor(bucket.slices.front()).name,
                  .last = tensor(bucket.slices.back()).name,
                  .slices = bucket.slices.size(),
                  .option = core::to_string(bucket.option),
                  .uses_host = core::uses_host(bucket.option),
                  .due = bucket.due,
                  .is_lossy = core::needed_fidelity(bucket.option, known) == core::Fidelity::lossy};
    for (const core::Slice& slice : bucket.slices) row.ready_us = std::max(row.ready_us, tensor(slice).ready_us);
    row.kind = kinds.emplace(row.option, static_cast<int>(kinds.size())).first->second;
    rows.push_back(std::move(row));
  }
  for (size_t place = 0; place < strategy.order.size(); ++place) {
    rows[static_cast<size_t>(strategy.order[place].bucket)].places.push_back(static_cast<int>(place));
  }
  return rows;
}

std::string tensors_of(const core::Bucket& bucket, const core::GradientTable& table) {
  const auto name = [&](const core::Slice& slice) { return table.tensors[static_cast<size_t>(slice.tensor)].name; };
  const std::string first = name(bucket.slices.front()), last = name(bucket.slices.back());
  return bucket.slices.size() == 1 ? first : first + " to " + last;
}

}  // namespace gradtune::tuner
