// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// What a session learns of its gradients in the first step, where they lie from then on, and how tuning begins.
#include <algorithm>
#include <span>
#include <string_view>
#include <unordered_map>
#include <utility>

#include "engine/compress/compressor.h"
#include "hooks/session.h"
#include "policies/space/baseline.h"

namespace gradtune {

// From a table that has the same tensors. Returns their positions in this one.
std::vector<int32_t> Session::take_content(const core::GradientTable& from) {
  std::unordered_map<std::string_view, int32_t> positions;
  for (const core::TensorInfo& tensor : gradients_.table().tensors) {
    positions.emplace(tensor.name, static_cast<int32_t>(positions.size()));
  }
  std::vector<int32_t> order;
  for (const core::TensorInfo& tensor : from.tensors) {
    const auto found = positions.find(tensor.name);
    core::check(found != positions.end(), "an order is one of the same tensors");
    order.push_back(found->second);
    gradients_.set_content(order.back(), tensor.content);
  }
  return order;
}

// The arena in the order of that table, with its content.
void Session::lay(const core::GradientTable& ordered) { gradients_.lay(take_content(ordered)); }

void Session::set_gradients() {
  executor_.set_gradients(gradients_.table(), gradients_.arenas());
  overlap_.set_tensors();
  if (!pass_.is_running()) pass_.set_tensors(gradients_.table().tensors.size());
  used_.assign(gradients_.table().tensors.size(), static_cast<uint8_t>(Gradients::Use::dense));
  own_shares_.assign(used_.size(), -1);
  takes_.assign(used_.size(), Stepper::Takes::any);
  for (const Stepper::Group& group : job_.stepper->groups()) {
    for (const torch::Tensor& parameter : group.parameters) {
      const int32_t position = gradients_.position_of(parameter);
      if (position >= 0) takes_[static_cast<size_t>(position)] = group.takes;
    }
  }
}

// (Again) when more is known of the gradients: baselines prepared, agreement from epoch 1, and on rank 0 a tuner for
// this table once all is known.
void Session::start_tuning() {
  const core::GradientTable& table = gradients_.table();
  if (known_ == Known::all) gradients_.touch();
  set_gradients();
  std::vector<policies::Candidate> baselines = policies::baselines(table, settings_.fidelity);
  std::optional<policies::Candidate> imported;
  if (imported_) imported = policies::Candidate{imported_->strategy, imported_->label};
  tuner::Candidates ready;
  for (size_t b = 0; b < baselines.size(); ++b) ready[static_cast<int32_t>(b)] = std::move(baselines[b]);
  if (imported) ready[tuner::kImportedSlot] = *imported;
  const int32_t first = tuner::first_slot(tuner_options(settings_), compress::known_traits(), imported);
  protocol_.start(ready, first, /*is_committed=*/settings_.tuning_budget == 0);  // then there are no trials
  if (driver_ && known_ == Known::all) driver_->start(table, std::move(imported));
  forget_result();
}

// At the end of the first pass: the arena is laid in the order in which rank 0's gradients were ready.
void Session::learn_order() {
  std::vector<int32_t> order(pass_.order().begin(), pass_.order().end());
  for (size_t p = 0; p < used_.size(); ++p) {
    if (!pass_.is_ready(p)) order.push_back(static_cast<int32_t>(p));  // not used in the first step: last
  }
  order = core::small_last(gradients_.table(), order);
  peers_.broadcast(reinterpret_cast<std::byte*>(order.data()), static_cast<int64_t>(order.size() * sizeof order[0]));
  gradients_.lay(order);
  known_ = Known::all;
  protocol_.exclude();
  start_tuning();
}

// At the end of the first pass, which held its gradients: so no table is ever laid out whose gradient has few rows.
void Session::begin_first_step() {
  learn_content();
  known_ = imported_ ? Known::all : Known::content;
  start_tuning();
  begin_step();
  for (const int32_t position : pass_.order()) send(position);
}

// In the first pass: all ranks know alike which averages will be sparse. How dense these are is a guess until averages
// are there: that of the rank that has most, and as if ranks drew their rows apart.
void Session::learn_content() {
  std::vector<float> shares(used_.size() * static_cast<size_t>(peers_.size()));
  for (size_t p = 0; p < used_.size(); ++p) {
    const auto position = static_cast<int32_t>(p);
    const Gradients::Use use = gradients_.use_of(position);
    used_[p] = static_cast<uint8_t>(use);
    if (use != Gradients::Use::rows) continue;
    shares[p * static_cast<size_t>(peers_.size()) + static_cast<size_t>(peers_.rank())] =
        static_cast<float>(gradients_.share_of_rows(position));
  }
  peers_.max(used_);
  peers_.sum(shares);
  for (size_t p = 0; p < used_.size(); ++p) {
    if (used_[p] != static_cast<uint8_t>(Gradients::Use::rows)) continue;
    const auto ranks = static_cast<size_t>(peers_.size());
    const std::span<const float> of_ranks = std::span(shares).subspan(p * ranks, ranks);
    double most = 0, none = 1;
    for (const float share : of_ranks) {
      most = std::max<double>(most, share);
      none *= 1 - share;
    }
    gradients_.set_rows(static_cast<int32_t>(p), most, 1 - none);
  }
}

}  // namespace gradtune
