// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// How a session gives averages to the user's optimizer, and what it tells of sparse ones.
#include "hooks/session.h"

#include <ATen/record_function.h>

#include <algorithm>

namespace gradtune {
namespace {

constexpr auto kNone = static_cast<uint8_t>(Gradients::Use::none);

}  // namespace

// What optimizers find: a sparse gradient where all ranks that have one have a sparse one, else a dense one. Gradients
// that no rank used stay undefined, as with DDP, so that momentum and weight decay leave their parameters alone. Not in
// buckets that keep residuals, or drained some on any rank: there the average holds what earlier steps still owed, and
// is dense, or sparse where the optimizer takes nothing else.
void Session::give_averages(bool not_dense) {
  const at::DisableRecordFunctionGuard unseen;  // a use of gradients between backward() and step() is the user's
  for (size_t p = 0; p < used_.size() && not_dense; ++p) {
    if (executor_.drained(static_cast<int32_t>(p))) used_[p] = std::max(used_[p], owed_[p]);
  }
  if (not_dense) peers_.max(used_);
  for (size_t p = 0; p < used_.size(); ++p) {
    const auto position = static_cast<int32_t>(p);
    if (used_[p] == kNone && executor_.keeps_residual(position)) used_[p] = owed_[p];
    switch (static_cast<Gradients::Use>(used_[p])) {
      case Gradients::Use::none: gradients_.forget(position); continue;
      case Gradients::Use::rows:
        gradients_.give_rows(position, executor_.listed(position));
        tell_content(position);
        continue;
      case Gradients::Use::dense: break;
    }
    executor_.lay_out_average(position);
    gradients_.give_dense(position);
  }
  gradients_.let_go();
}

// Of a bucket that works on lists, which has counted them.
void Session::tell_content(int32_t position) {
  const exec::Workspace::Listed listed = executor_.listed(position);
  if (!driver_ || listed.rows == nullptr) return;
  const auto rows = static_cast<double>(listed.order->rows());
  driver_->saw_content(position, static_cast<double>(listed.own) / rows,
                       static_cast<double>(listed.rows->count) / rows);
}

}  // namespace gradtune
