// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
#include "hooks/resume.h"

#include <algorithm>
#include <cstring>
#include <functional>
#include <map>
#include <utility>

#include "engine/compress/compressor.h"
#include "hooks/result_text.h"

namespace gradtune {
namespace {

std::string_view bytes_of(std::span<const float> values) {
  return {reinterpret_cast<const char*>(values.data()), values.size_bytes()};
}

using Known = Learning::Known;

bool any(const AllResiduals& residuals) {
  return std::ranges::any_of(residuals, [](const auto& values) { return !values.empty(); });
}

}  // namespace

// --- saving ----------------------------------------------------------------------------------------------------------

tuner::SavedRank Resume::saved_rank() const {
  const tuner::StepProtocol::State state = of_.protocol.state();
  tuner::SavedRank saved{.step = state.step,
                         .nonfinite_steps = state.nonfinite_steps,
                         .order_learned = learning_.known() == Known::all,
                         .committed = state.committed,
                         .local = state.local,
                         .agreement = state.agreement,
                         .errors = state.errors};
  const core::GradientTable& table = of_.gradients.table();
  for (size_t t = 0; t < table.tensors.size(); ++t) {
    if (const core::Content& content = table.tensors[t].content; content != core::Content()) {
      saved.contents[static_cast<int32_t>(t)] = content;
    }
  }
  std::vector<int32_t> slots;
  for (const auto& [slot, hash] : saved.agreement.slots) slots.push_back(slot);
  const auto& pending = saved.agreement.pending;
  if (pending && pending->hash) slots.push_back(pending->slot);
  for (const int32_t slot : slots) {
    const policies::Candidate& candidate = of_.protocol.candidates().at(slot);
    saved.strategies[slot] =
        tuner::strategy_file(table, of_.peers.size(), of_.settings.fidelity, candidate.label, candidate.strategy);
  }
  return saved;
}

void Resume::save(const std::string& folder) const {
  const exec::Carried carried = of_.executor.carried();
  tuner::SavedRank rank = saved_rank();
  rank.random_step = *carried.step;
  rank.holders = *carried.holders;
  const std::string rank_text = tuner::to_json(rank);
  std::string tuner_text, history;
  tuner::Sections sections{{std::string(kRankSection), rank_text}};
  if (!carried.state.empty()) {
    sections.emplace(kStateSection,
                     std::string_view(reinterpret_cast<const char*>(carried.state.data()), carried.state.size()));
  }
  const core::ArenaLayout layout = core::lay_arenas(of_.gradients.table());
  for (size_t arena = 0; arena < layout.arenas.size(); ++arena) {
    const auto residuals = carried.residuals[arena], parked = carried.parked[arena];
    if (!residuals.empty()) sections.emplace(residuals_section(layout, arena), bytes_of(residuals));
    if (!parked.empty()) sections.emplace(parked_section(layout, arena), bytes_of(parked));
  }
  if (of_.driver && learning_.known() == Known::all) {
    tuner_text = tuner::to_json(of_.driver->saved());
    history = of_.driver->history();
    sections.emplace(kTunerSection, tuner_text);
    sections.emplace(kHistorySection, history);
  }
  write_checkpoint(of_.peers, folder, of_.protocol.step(), checkpoint_fingerprint(of_.gradients.table()), sections);
}

// --- loading ---------------------------------------------------------------------------------------------------------

std::string Resume::load(const std::string& folder) {
  const tuner::Manifest manifest = find_checkpoint(of_.peers, folder, checkpoint_fingerprint(of_.gradients.table()));
  std::string why;
  if (manifest.world_size == of_.peers.size()) {
    auto file = read_rank_file(folder, manifest, of_.peers.rank(), of_.gradients.table());
    of_.peers.must_succeed("load the checkpoint", file ? core::Status() : file.error());
    why = resume(file.value());
  } else {
    why = "it was saved by " + std::to_string(manifest.world_size) + " ranks; each takes the mean of their residuals";
    start_again(read_resized(of_.peers, folder, manifest, of_.gradients.table()), /*committed=*/"");
  }
  const bool has_result = of_.driver && learning_.known() == Known::all;
  const std::string text = of_.peers.broadcast_text(has_result ? to_text(result_of(*of_.driver)) : "");
  if (!text.empty()) of_.results.take(text);
  return why;
}

// Continues tuning, or starts it again if rank 0 knows a reason; returns that reason.
std::string Resume::resume(const SavedFile& file) {
  core::Status can;
  if (file.tuner) can = of_.driver->can_resume(*file.tuner, file.told);
  std::string why = of_.peers.broadcast_text(can ? "" : can.error().message);
  if (why.empty()) {
    of_.peers.must_succeed("load the checkpoint", fits(file));
    core::Result<tuner::Action> announced = tuner::Action();
    if (file.tuner) announced = of_.driver->resume(*file.tuner, file.told);
    why = of_.peers.broadcast_text(announced ? "" : announced.error().message);
    if (why.empty()) go_on(file, announced.value());
  }
  if (why.empty()) return why;
  const bool is_committed = file.tuner && file.tuner->committed;
  start_again(file, of_.peers.broadcast_text(is_committed ? tuner::to_json(*file.tuner->committed) : ""));
  return why;
}

// Checks that the saved codec state has the length that the strategy in force needs.
core::Status Resume::fits(const SavedFile& file) const {
  const core::Strategy& strategy = file.rank.in_force().strategy;
  const auto program = of_.executor.compile(strategy, file.table);
  if (!program) return program.error();
  if (static_cast<size_t>(program.value()->state_bytes) == file.state.size()) return {};
  return core::Error{core::Error::Code::mismatch, "section \"state\" has " + std::to_string(file.state.size()) +
                                                      " bytes, the strategy in force needs " +
                                                      std::to_string(program.value()->state_bytes)};
}

// Continues as if the job had never ended.
void Resume::go_on(const SavedFile& file, const tuner::Action& announced) {
  const tuner::SavedRank& saved = file.rank;
  learning_.lay(file.table);
  learning_.set_known(saved.order_learned ? Known::all : Known::nothing);
  if (saved.order_learned) of_.gradients.touch();
  learning_.set_tensors();
  tuner::Candidates candidates;
  for (const auto& [slot, file_of] : saved.strategies) candidates[slot] = {file_of.strategy, file_of.label};
  const core::Status prepared = of_.protocol.restore_candidates(candidates);
  try {
    of_.peers.must_succeed("prepare the strategies of the checkpoint", prepared);
  } catch (const core::Exception& error) {
    lost_({error.code(), error.what()});
    throw;
  }
  of_.protocol.restore({.step = saved.step,
                        .nonfinite_steps = saved.nonfinite_steps,
                        .committed = saved.committed,
                        .local = saved.local,
                        .agreement = saved.agreement,
                        .errors = saved.errors});
  take_over(file);
  const exec::Carried carried = of_.executor.carried(any(file.residuals), any(file.parked));
  copy(file.table, file.residuals, carried.residuals);
  copy(file.table, file.parked, carried.parked);
  *carried.holders = saved.holders;
  std::memcpy(carried.state.data(), file.state.data(), file.state.size());
  of_.results.forget();
  if (of_.driver) commands_.announce(announced);
}

// Starts with a new tuner, in the order of the checkpoint. The residuals of the checkpoint are parked, because the
// strategy that left them may never run again. Tuning starts from the strategy file that the user gave, else from
// the committed strategy, as imported.
void Resume::start_again(const SavedFile& file, const std::string& committed) {
  if (file.rank.order_learned) learning_.set_known(Known::all);
  if (!of_.settings.strategy.empty()) {
    learning_.take_content(file.table);
  } else {
    learning_.lay(file.table);
    learning_.set_imported({});
    const core::TraitsTable known = compress::known_traits();
    auto strategy = tuner::parse_strategy(committed, known);
    if (strategy &&
        tuner::fit(strategy.value(), of_.gradients.table(), of_.peers.size(), of_.settings.fidelity, known)) {
      learning_.set_imported(std::move(strategy).value());
    }
  }
  learning_.start();
  take_over(file);
  const bool owes = any(file.residuals) || any(file.parked);
  const exec::Carried carried = of_.executor.carried(owes, owes);
  for (const AllResiduals* from : {&file.residuals, &file.parked}) copy(file.table, *from, carried.parked);
  if (owes && of_.protocol.is_committed()) of_.protocol.commit_again();  // so that they drain
  of_.protocol.go_on_from(file.rank.step, file.rank.nonfinite_steps);
}

// Restores the state of random compressors, and clears residuals.
void Resume::take_over(const SavedFile& file) {
  const exec::Carried carried = of_.executor.carried();
  *carried.step = file.rank.random_step;
  for (const auto& all : {carried.residuals, carried.parked}) {
    for (const auto residuals : all) std::ranges::fill(residuals, 0.0F);
  }
}

// Matches tensors by name, because the arena may have another order. Adds to the values that are there.
void Resume::copy(const core::GradientTable& table, const AllResiduals& from,
                  const std::vector<std::span<float>>& to) const {
  if (!any(from)) return;
  std::map<std::string_view, const float*> saved;
  const core::ArenaLayout before = core::lay_arenas(table), now = core::lay_arenas(of_.gradients.table());
  for (size_t t = 0; t < table.tensors.size(); ++t) {
    const auto [arena, begin] = before.tensors[t];
    saved[table.tensors[t].name] = from[static_cast<size_t>(arena)].data() + begin;
  }
  for (size_t t = 0; t < now.tensors.size(); ++t) {
    const core::TensorInfo& tensor = of_.gradients.table().tensors[t];
    const auto [arena, begin] = now.tensors[t];
    const float* values = saved.at(tensor.name);
    float* sums = to[static_cast<size_t>(arena)].data() + begin;
    std::transform(values, values + tensor.numel, sums, sums, std::plus<>());
  }
}

}  // namespace gradtune
