// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
#include "hooks/contents.h"

#include <ATen/record_function.h>

#include <algorithm>
#include <span>

namespace gradtune {
namespace {

constexpr auto kNone = static_cast<uint8_t>(Gradients::Use::none), kRows = static_cast<uint8_t>(Gradients::Use::rows),
               kDense = static_cast<uint8_t>(Gradients::Use::dense);

}  // namespace

void Contents::set_tensors(const Stepper& stepper) {
  used_.assign(gradients_.table().tensors.size(), kDense);
  own_shares_.assign(used_.size(), -1);
  takes_.assign(used_.size(), Stepper::Takes::any);
  for (const Stepper::Group& group : stepper.groups()) {
    for (const torch::Tensor& parameter : group.parameters) {
      const int32_t position = gradients_.position_of(parameter);
      if (position >= 0) takes_[static_cast<size_t>(position)] = group.takes;
    }
  }
}

void Contents::learn() {
  const auto ranks = static_cast<size_t>(peers_.size());
  std::vector<float> shares(used_.size() * ranks);
  for (size_t p = 0; p < used_.size(); ++p) {
    const auto position = static_cast<int32_t>(p);
    used_[p] = static_cast<uint8_t>(gradients_.use_of(position));
    if (used_[p] != kRows) continue;
    shares[p * ranks + static_cast<size_t>(peers_.rank())] = static_cast<float>(gradients_.share_of_rows(position));
  }
  peers_.max(used_);
  peers_.sum(shares);
  for (size_t p = 0; p < used_.size(); ++p) {
    if (used_[p] != kRows) continue;
    double most = 0, none = 1;
    for (const float share : std::span(shares).subspan(p * ranks, ranks)) {
      most = std::max<double>(most, share);
      none *= 1 - share;
    }
    gradients_.set_rows(static_cast<int32_t>(p), most, 1 - none);
  }
}

Gradients::Brought Contents::bring(int32_t position, int64_t step) {
  Gradients::Brought brought = gradients_.bring(position);
  used_[static_cast<size_t>(position)] = static_cast<uint8_t>(brought.use);
  if (driver_) own_shares_[static_cast<size_t>(position)] = own_share(position, brought, step);
  return brought;
}

std::vector<SharedThing> Contents::describe() const {
  std::vector<SharedThing> things;
  for (size_t p = 0; p < used_.size(); ++p) {
    things.push_back(
        {"gradient of " + gradients_.table().tensors[p].name, {{"it", used_[p] == kNone ? "missing" : "there"}}});
  }
  return things;
}

void Contents::give(bool not_dense, int64_t step) {
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
        report_content(position);
        continue;
      case Gradients::Use::dense: break;
    }
    executor_.lay_out_average(position);
    gradients_.give_dense(position);
    report_sample(position, step);
  }
  gradients_.let_go();
}

// The Use of an average that holds residuals. It is the same on all ranks.
uint8_t Contents::owed(int32_t position) const {
  const Stepper::Takes takes = takes_[static_cast<size_t>(position)];
  const bool is_sparse = takes == Stepper::Takes::sparse ||
                         (takes == Stepper::Takes::as_before && gradients_.averages_were_sparse(position));
  return is_sparse ? kRows : kDense;
}

// Buckets that work on lists count their rows themselves.
double Contents::own_share(int32_t position, const Gradients::Brought& brought, int64_t step) const {
  if (brought.use == Gradients::Use::none) return -1;
  if (brought.use == Gradients::Use::dense) return gradients_.sampled_share(position, brought.arrived.values, step);
  return executor_.listed(position).rows == nullptr ? gradients_.share_of_rows(position) : -1;
}

void Contents::report_content(int32_t position) {
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

void Contents::report_sample(int32_t position, int64_t step) {
  if (!driver_ || own_shares_[static_cast<size_t>(position)] < 0) return;
  const double of_all = gradients_.sampled_share(position, nullptr, step);
  if (of_all >= 0) driver_->saw_sample(position, {own_shares_[static_cast<size_t>(position)], of_all});
}

}  // namespace gradtune
