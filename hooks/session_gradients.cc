// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// Learns the kinds and order of gradients in the first step, lays out the arena, and starts tuning.
#include <algorithm>
#include <span>
#include <string_view>
#include <unordered_map>
#include <utility>

#include "engine/compress/compressor.h"
#include "hooks/session.h"
#include "policies/space/baseline.h"

namespace gradtune {

// Copies the content of a table with the same tensors. Returns their positions in this table.
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

// Lays out the arena in the order of that table, with its content.
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

// Called whenever more is known of the gradients. It prepares the baselines, starts the agreement at epoch 1, and on
// rank 0 starts a tuner for this table once everything is known.
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
  protocol_.start(ready, first, /*is_committed=*/settings_.tuning_budget == 0);  // a committed strategy has no trials
  if (driver_ && known_ == Known::all) driver_->start(table, std::move(imported));
  forget_result();
}

// Called at the end of the first pass: lays out the arena in the order in which rank 0's gradients were ready.
void Session::learn_order() {
  std::vector<int32_t> order(pass_.order().begin(), pass_.order().end());
  for (size_t p = 0; p < used_.size(); ++p) {
    if (!pass_.is_ready(p)) order.push_back(static_cast<int32_t>(p));  // not used in the first step, so it goes last
  }
  order = core::small_last(gradients_.table(), order);
  peers_.broadcast(reinterpret_cast<std::byte*>(order.data()), static_cast<int64_t>(order.size() * sizeof order[0]));
  gradients_.lay(order);
  known_ = Known::all;
  protocol_.exclude();
  start_tuning();
}

// Called at the end of the first pass, which held back its gradients. So a table whose gradient has few rows is
// never laid out densely.
void Session::begin_first_step() {
  learn_content();
  known_ = imported_ ? Known::all : Known::content;
  start_tuning();
  begin_step();
  for (const int32_t position : pass_.order()) send(position);
}

// Called in the first pass: all ranks learn which averages will be sparse. Their density is a guess until averages
// exist: it takes the rank with the most rows, and assumes that ranks draw their rows independently.
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
