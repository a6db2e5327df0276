// SPDX-FileCopyrightText: The gradtune authors
// SPDX-License-Identifier: Apache-2.0
//
// Saves a session and continues from a saved one. All data that was read is checked before anything is changed.
#include <algorithm>
#include <array>
#include <cstring>
#include <functional>
#include <utility>

#include "engine/compress/compressor.h"
#include "hooks/refusal.h"
#include "hooks/result_text.h"
#include "hooks/session.h"

namespace gradtune {
namespace {

std::string_view bytes_of(std::span<const float> values) {
  return {reinterpret_cast<const char*>(values.data()), values.size_bytes()};
}

bool any(const AllResiduals& residuals) {
  return std::ranges::any_of(residuals, [](const auto& values) { return !values.empty(); });
}

}  // namespace

// Averages that no step() used are allowed, as in a step that is skipped: nothing is in flight then.
void Session::check_out_of_backward(const char* what) {
  check_usable();
  if (!pass_.is_running()) return;
  refuse(std::string(what) +
         " was called inside of a backward pass, or after one that ended with an exception; it may be called before "
         "or after a backward pass");
}

// --- saving ----------------------------------------------------------------------------------------------------------

tuner::SavedRank Session::saved_rank() const {
  const tuner::StepProtocol::State state = protocol_.state();
  tuner::SavedRank saved{.step = state.step,
                         .nonfinite_steps = state.nonfinite_steps,
                         .order_learned = known_ == Known::all,
                         .committed = state.committed,
                         .local = state.local,
                         .agreement = state.agreement,
                         .errors = state.errors};
  const core::GradientTable& table = gradients_.table();
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
    const policies::Candidate& candidate = protocol_.candidates().at(slot);
    saved.strategies[slot] =
        tuner::strategy_file(table, peers_.size(), settings_.fidelity, candidate.label, candidate.strategy);
  }
  return saved;
}

void Session::save_checkpoint(const std::string& folder) {
  check_out_of_backward("save_checkpoint");
  protocol_.exclude();  // the next step includes the time of saving
  peers_.enter(Call::save_checkpoint, protocol_.step());
  explained(Final::between_ranks, [&] {
    peers_.must_agree("the steps done at a checkpoint", std::to_string(protocol_.step()));
    settle_step();
    const exec::Carried carried = executor_.carried();
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
    const core::ArenaLayout layout = core::lay_arenas(gradients_.table());
    for (size_t arena = 0; arena < layout.arenas.size(); ++arena) {
      const auto residuals = carried.residuals[arena], parked = carried.parked[arena];
      if (!residuals.empty()) sections.emplace(residuals_section(layout, arena), bytes_of(residuals));
      if (!parked.empty()) sections.emplace(parked_section(layout, arena), bytes_of(parked));
    }
    if (driver_ && known_ == Known::all) {
      tuner_text = tuner::to_json(driver_->saved());
      history = driver_->history();
      sections.emplace(kTunerSection, tuner_text);
      sections.emplace(kHistorySection, history);
    }
    write_checkpoint(peers_, folder, protocol_.step(), checkpoint_fingerprint(gradients_.table()), sections);
  });
}

// --- loading ---------------------------------------------------------------------------------------------------------

void Session::load_checkpoint(const std::string& folder) {
  check_out_of_backward("load_checkpoint");
  peers_.enter(Call::load_checkpoint, protocol_.step());
  explained(Final::between_ranks, [&] {
    settle_step();
    const tuner::Manifest manifest = find_checkpoint(peers_, folder, checkpoint_fingerprint(gradients_.table()));
    std::string why;  // why tuning starts again; empty: it continues
    if (manifest.world_size == peers_.size()) {
      auto file = read_rank_file(folder, manifest, peers_.rank(), gradients_.table());
      peers_.must_succeed("load the checkpoint", file ? core::Status() : file.error());
      why = resume(file.value());
    } else {
      why = "it was saved by " + std::to_string(manifest.world_size) + " ranks; each takes the mean of their residuals";
      start_again(read_resized(peers_, folder, manifest, gradients_.table()), /*committed=*/"");
    }
    const bool has_result = driver_ && known_ == Known::all;
    if (const std::string text = peers_.broadcast_text(has_result ? to_text(driver_->result()) : ""); !text.empty()) {
      take_result(text);
    }
    if (peers_.rank() == 0 && !settings_.quiet) {
      front_->say("gradtune: checkpoint of step " + std::to_string(protocol_.step()) + " loaded, tuning " +
                  (why.empty() ? "goes on" : "starts again: " + why) + "\n");
    }
  });
  protocol_.exclude();
  step_began_ns_ = clock_->now_ns();
  pass_.forget();
  averaged_at_.reset();
  updated_ = 0;
}

// Continues tuning, or starts it again if rank 0 knows a reason; returns that reason.
std::string Session::resume(const SavedFile& file) {
  core::Status can;
  if (file.tuner) can = driver_->can_resume(*file.tuner, file.told);
  std::string why = peers_.broadcast_text(can ? "" : can.error().message);
  if (why.empty()) {
    peers_.must_succeed("load the checkpoint", fits(file));
    core::Result<tuner::Action> announced = tuner::Action();
    if (file.tuner) announced = driver_->resume(*file.tuner, file.told);
    why = peers_.broadcast_text(announced ? "" : announced.error().message);
    if (why.empty()) go_on(file, announced.value());
  }
  if (why.empty()) return why;
  const bool is_committed = file.tuner && file.tuner->committed;
  start_again(file, peers_.broadcast_text(is_committed ? tuner::to_json(*file.tuner->committed) : ""));
  return why;
}

// Checks that the saved codec state has the length that the strategy in force needs.
core::Status Session::fits(const SavedFile& file) const {
  const core::Strategy& strategy = file.rank.in_force().strategy;
  const auto program = exec::compile(strategy, file.table, peers_.groups().seat);
  if (!program) return program.error();
  if (static_cast<size_t>(program.value()->state_bytes) == file.state.size()) return {};
  return core::Error{core::Error::Code::mismatch, "section \"state\" has " + std::to_string(file.state.size()) +
                                                      " bytes, the strategy in force needs " +
                                                      std::to_string(program.value()->state_bytes)};
}

// Continues as if the job had never ended.
void Session::go_on(const SavedFile& file, const tuner::Action& announced) {
  const tuner::SavedRank& saved = file.rank;
  lay(file.table);
  known_ = saved.order_learned ? Known::all : Known::nothing;
  if (saved.order_learned) gradients_.touch();
  set_gradients();
  tuner::Candidates candidates;
  for (const auto& [slot, file_of] : saved.strategies) candidates[slot] = {file_of.strategy, file_of.label};
  const core::Status prepared = protocol_.restore_candidates(candidates);
  try {
    peers_.must_succeed("prepare the strategies of the checkpoint", prepared);
  } catch (const core::Exception& error) {
    failure_ = core::Error{error.code(), error.what()};  // the previous state is lost
    throw;
  }
  protocol_.restore({.step = saved.step,
                     .nonfinite_steps = saved.nonfinite_steps,
                     .committed = saved.committed,
                     .local = saved.local,
                     .agreement = saved.agreement,
                     .errors = saved.errors});
  take_over(file);
  const exec::Carried carried = executor_.carried(any(file.residuals), any(file.parked));
  copy(file.table, file.residuals, carried.residuals);
  copy(file.table, file.parked, carried.parked);
  *carried.holders = saved.holders;
  std::memcpy(carried.state.data(), file.state.data(), file.state.size());
  forget_result();
  if (driver_) announce(announced);
}

// Starts with a new tuner, in the order of the checkpoint. The residuals of the checkpoint are parked, because the
// strategy that left them may never run again. Tuning starts from the strategy file that the user gave, else from
// the committed strategy, as imported.
void Session::start_again(const SavedFile& file, const std::string& committed) {
  if (file.rank.order_learned) known_ = Known::all;
  if (!settings_.strategy.empty()) {
    take_content(file.table);
  } else {
    lay(file.table);
    imported_.reset();
    const core::TraitsTable known = compress::known_traits();
    auto strategy = tuner::parse_strategy(committed, known);
    if (strategy && tuner::fit(strategy.value(), gradients_.table(), peers_.size(), settings_.fidelity, known)) {
      imported_ = std::move(strategy).value();
    }
  }
  start_tuning();
  take_over(file);
  const bool owes = any(file.residuals) || any(file.parked);
  const exec::Carried carried = executor_.carried(owes, owes);
  for (const AllResiduals* from : {&file.residuals, &file.parked}) copy(file.table, *from, carried.parked);
  if (owes && protocol_.is_committed()) protocol_.commit_again();  // so that they drain
  protocol_.go_on_from(file.rank.step, file.rank.nonfinite_steps);
}

// Restores the state of random compressors, and clears residuals.
void Session::take_over(const SavedFile& file) {
  const exec::Carried carried = executor_.carried();
  *carried.step = file.rank.random_step;
  for (const auto& all : {carried.residuals, carried.parked}) {
    for (const auto residuals : all) std::ranges::fill(residuals, 0.0F);
  }
}

// Matches tensors by name, because the arena may have another order. Adds to the values that are there.
void Session::copy(const core::GradientTable& table, const AllResiduals& from,
                   const std::vector<std::span<float>>& to) const {
  if (!any(from)) return;
  std::map<std::string_view, const float*> saved;
  const core::ArenaLayout before = core::lay_arenas(table), now = core::lay_arenas(gradients_.table());
  for (size_t t = 0; t < table.tensors.size(); ++t) {
    const auto [arena, begin] = before.tensors[t];
    saved[table.tensors[t].name] = from[static_cast<size_t>(arena)].data() + begin;
  }
  for (size_t t = 0; t < now.tensors.size(); ++t) {
    const core::TensorInfo& tensor = gradients_.table().tensors[t];
    const auto [arena, begin] = now.tensors[t];
    const float* values = saved.at(tensor.name);
    float* sums = to[static_cast<size_t>(arena)].data() + begin;
    std::transform(values, values + tensor.numel, sums, sums, std::plus<>());
  }
}

}  // namespace gradtune
