// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// The buckets of a program that work on lists of rows (program.h): their arrived gradients and lists, and the work on
// them outside of operations. All other buckets work on the gradient.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "engine/core/gradient_table.h"
#include "engine/core/row_order.h"
#include "engine/exec/compute.h"
#include "engine/exec/program.h"

namespace gradtune::exec {

class RowBuckets {
 public:
  // Called when a program is put in force; both outlive the use of it.
  void follow(const Program& program, const core::GradientTable& table);

  // Null: the bucket works on the gradient.
  RowState* of(int32_t bucket) const { return rows_[static_cast<size_t>(bucket)].get(); }

  // The rows of a tensor's average once its bucket is done, and the number of them that are this rank's own; none if
  // its bucket works on the gradient. They stay valid until the next step begins.
  struct Listed {
    const compress::RowBuffer* rows = nullptr;  // null: none
    const core::RowOrder* order = nullptr;
    int64_t width = 0, own = 0;
  };
  Listed listed(int32_t bucket) const;
  // True if the bucket works on lists and the whole gradient arrived.
  bool came_dense(int32_t bucket) const;

  // Writes the arrived gradient to its place, where residuals of other strategies are added to it.
  void lay_out(int32_t bucket, std::byte* gradient);
  // Writes the average to its place.
  void lay_out_average(int32_t bucket, std::byte* gradient) const;

 private:
  const RowLists& lists(int32_t bucket) const { return *program_->buckets[static_cast<size_t>(bucket)].lists; }

  const Program* program_ = nullptr;
  const core::GradientTable* table_ = nullptr;
  std::vector<std::unique_ptr<RowState>> rows_;  // per bucket
};

}  // namespace gradtune::exec
