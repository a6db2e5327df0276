// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
#include "hooks/learning.h"

#include <algorithm>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>

#include "engine/compress/compressor.h"
#include "hooks/shared_state.h"
#include "policies/space/baseline.h"

namespace gradtune {

std::vector<int32_t> Learning::take_content(const core::GradientTable& from) {
  std::unordered_map<std::string_view, int32_t> positions;
  for (const core::TensorInfo& tensor : of_.gradients.table().tensors) {
    positions.emplace(tensor.name, static_cast<int32_t>(positions.size()));
  }
  std::vector<int32_t> order;
  for (const core::TensorInfo& tensor : from.tensors) {
    const auto found = positions.find(tensor.name);
    core::check(found != positions.end(), "an order is one of the same tensors");
    order.push_back(found->second);
    of_.gradients.set_content(order.back(), tensor.content);
  }
  return order;
}

void Learning::set_tensors() {
  of_.executor.set_gradients(of_.gradients.table(), of_.gradients.arenas());
  of_.overlap.set_tensors();
  if (!of_.pass.is_running()) of_.pass.set_tensors(of_.gradients.table().tensors.size());
  of_.contents.set_tensors(of_.stepper);
}

void Learning::import() {
  const std::string& files = of_.settings.strategy;
  if (files.empty()) return;
  const core::TraitsTable known = compress::known_traits();
  // A process with several models has one variable for all of them, so the file for this model is chosen.
  std::optional<core::Error> why_not;
  for (std::string_view rest = files; !rest.empty();) {
    const std::string path(rest.substr(0, rest.find(',')));
    rest.remove_prefix(std::min(rest.size(), path.size() + 1));
    auto file =
        tuner::parse_strategy(of_.peers.broadcast_file(path, tuner::kJobLimits.bytes, "option strategy"), known);
    core::Result<core::GradientTable> table = core::GradientTable();
    if (file) table = tuner::fit(file.value(), of_.gradients.table(), of_.peers.size(), of_.settings.fidelity, known);
    if (file && table) {
      for (const core::Bucket& bucket : file.value().strategy.buckets) {
        check_momentum(of_.stepper, bucket.option.codecs);
      }
      lay(table.value());
      imported_ = std::move(file.value());
      return;
    }
    const core::Error& error = file ? table.error() : file.error();
    if (!why_not) why_not = core::Error{error.code, "strategy file " + path + ": " + error.message};
  }
  const bool is_one = files.find(',') == std::string::npos;
  throw core::Exception(
      {why_not->code,
       is_one ? why_not->message : "no file of \"" + files + "\" can be used; the first: " + why_not->message});
}

void Learning::start() {
  const core::GradientTable& table = of_.gradients.table();
  if (known_ == Known::all) of_.gradients.touch();
  set_tensors();
  std::vector<policies::Candidate> baselines = policies::baselines(table, of_.settings.fidelity);
  std::optional<policies::Candidate> imported;
  if (imported_) imported = policies::Candidate{imported_->strategy, imported_->label};
  tuner::Candidates ready;
  for (size_t b = 0; b < baselines.size(); ++b) ready[static_cast<int32_t>(b)] = std::move(baselines[b]);
  if (imported) ready[tuner::kImportedSlot] = *imported;
  const int32_t first = tuner::first_slot(tuner_options(of_.settings), compress::known_traits(), imported);
  of_.protocol.start(ready, first, /*is_committed=*/of_.settings.tuning_budget == 0);  // then there are no trials
  if (of_.driver && known_ == Known::all) of_.driver->start(table, std::move(imported));
  of_.results.forget();
}

void Learning::learn_content() {
  of_.contents.learn();
  known_ = imported_ ? Known::all : Known::content;
  start();
}

void Learning::learn_order() {
  std::vector<int32_t> order(of_.pass.order().begin(), of_.pass.order().end());
  for (size_t p = 0; p < of_.gradients.table().tensors.size(); ++p) {
    if (!of_.pass.is_ready(p)) order.push_back(static_cast<int32_t>(p));  // not used in the first step, so it goes last
  }
  order = core::small_last(of_.gradients.table(), order);
  of_.peers.broadcast(reinterpret_cast<std::byte*>(order.data()), static_cast<int64_t>(order.size() * sizeof order[0]));
  of_.gradients.lay(order);
  known_ = Known::all;
  of_.protocol.exclude();
  start();
}

}  // namespace gradtune
