// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
#include "engine/exec/row_buckets.h"

#include <algorithm>
#include <cstring>

#include "engine/exec/add_rows.h"

namespace gradtune::exec {

void RowBuckets::follow(const Program& program, const core::GradientTable& table) {
  program_ = &program;
  table_ = &table;
  rows_.clear();
  for (const BucketProgram& bucket : program.buckets) {
    std::unique_ptr<RowState>& state = rows_.emplace_back();
    if (!bucket.lists) continue;
    state = std::make_unique<RowState>();
    state->order = core::RowOrder(bucket.lists->rows);
  }
}

void RowBuckets::lay_out(int32_t bucket, std::byte* gradient) {
  const auto index = static_cast<size_t>(bucket);
  const core::TensorInfo& tensor =
      table_->tensors[static_cast<size_t>(program_->strategy.buckets[index].slices[0].tensor)];
  const int64_t numel = program_->buckets[index].numel;
  Arrived& arrived = of(bucket)->arrived;
  const auto bytes = static_cast<size_t>(numel) * sizeof(float);
  if (arrived.kind == Arrived::Kind::in_place) return;
  if (arrived.kind == Arrived::Kind::dense) {
    std::memcpy(gradient, arrived.values, bytes);
  } else {
    std::memset(gradient, 0, bytes);
    if (arrived.kind == Arrived::Kind::rows) add_rows(arrived, tensor, {.length = numel}, gradient);
  }
  arrived = {};
}

RowBuckets::Listed RowBuckets::listed(int32_t bucket) const {
  const RowState* const rows = of(bucket);
  if (rows == nullptr) return {};
  return {&rows->lists[static_cast<size_t>(lists(bucket).result)], &rows->order, lists(bucket).width, rows->own};
}

bool RowBuckets::came_dense(int32_t bucket) const {
  const RowState* const rows = of(bucket);
  if (rows == nullptr) return false;
  return rows->arrived.kind == Arrived::Kind::in_place || rows->arrived.kind == Arrived::Kind::dense;
}

void RowBuckets::lay_out_average(int32_t bucket, std::byte* gradient) const {
  const RowState& rows = *of(bucket);
  const RowLists& of_bucket = lists(bucket);
  auto* const values = reinterpret_cast<float*>(gradient);
  std::fill(values, values + of_bucket.rows * of_bucket.width, 0.0F);
  compress::spread(rows.lists[static_cast<size_t>(of_bucket.result)], of_bucket.width, rows.order, values);
}

}  // namespace gradtune::exec
