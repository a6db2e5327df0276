// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// Passes averages to the user's optimizer, and reports sparse averages to the tuner.
#include "hooks/session.h"

#include <ATen/record_function.h>

#include <algorithm>

namespace gradtune {
namespace {

constexpr auto kNone = static_cast<uint8_t>(Gradients::Use::none);

}  // namespace

// Gives optimizers a sparse gradient if all ranks that have one have a sparse one, else a dense one. Gradients that
// no rank used stay undefined, as with DDP, so that momentum and weight decay do not change their parameters.
// Buckets that keep residuals, or drained some on any rank, differ: their averages contain residuals of earlier
// steps. Such an average is dense, or sparse if the optimizer accepts nothing else.
void Session::give_averages(bool not_dense) {
  const at::DisableRecordFunctionGuard unseen;  // only the user's own uses before step() count
  for (size_t p = 0; p < used_.size() && not_dense; ++p) {
    const auto position = static_cast<int32_t>(p);
    if (executor_.drained(position)) used_[p] = std::max(used_[p], owed(position));
  }
  if (not_dense) peers_.max(used_);
  for (size_t p = 0; p < used_.size(); ++p) {
    const auto position = static_cast<int32_t>(p);
    if (used_[p] == kNone && executor_.keeps_residual(position)) used_[p] = owed(position);
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
    tell_sample(position);
  }
  gradients_.let_go();
}

// The Use of an average that holds residuals. It is the same on all ranks.
uint8_t Session::owed(int32_t position) const {
  const Stepper::Takes takes = takes_[static_cast<size_t>(position)];
  const bool is_sparse = takes == Stepper::Takes::sparse ||
                         (takes == Stepper::Takes::as_before && gradients_.averages_were_sparse(position));
  return static_cast<uint8_t>(is_sparse ? Gradients::Use::rows : Gradients::Use::dense);
}

// Buckets that work on lists count their rows themselves.
double Session::own_share(int32_t position, const Gradients::Brought& brought) const {
  if (brought.use == Gradients::Use::none) return -1;
  if (brought.use == Gradients::Use::dense) {
    return gradients_.sampled_share(position, brought.arrived.values, protocol_.step());
  }
  return executor_.listed(position).rows == nullptr ? gradients_.share_of_rows(position) : -1;
}

void Session::tell_content(int32_t position) {
  if (!driver_) return;
  const exec::Workspace::Listed listed = executor_.listed(position);
  if (listed.rows != nullptr) {
    const auto rows = static_cast<double>(listed.order->rows());
    driver_->saw_content(position,
                         {static_cast<double>(listed.own) / rows, static_cast<double>(listed.rows->count) / rows});
  } else if (const double own = own_shares_[static_cast<size_t>(position)]; own >= 0) {
    driver_->saw_content(position, {own, gradients_.share_of_rows(position)});
  }
}

void Session::tell_sample(int32_t position) {
  if (!driver_ || own_shares_[static_cast<size_t>(position)] < 0) return;
  const double of_all = gradients_.sampled_share(position, nullptr, protocol_.step());
  if (of_all >= 0) driver_->saw_sample(position, {own_shares_[static_cast<size_t>(position)], of_all});
}

}  // namespace gradtune
